-- Rows on their way into the store over HTTP.
select 1;
