-- What whoever runs the server wants to see.
select 1;
