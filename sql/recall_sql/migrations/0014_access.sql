-- Hosts, tokens, and who may do what over HTTP.
select 1;
