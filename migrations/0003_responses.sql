-- Answers of POST /v1/responses that were stored. input_items: the whole conversation that the answer was given to.
create table responses (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text not null references tenants (id),
  body text not null check (json_valid(body)),
  input_items text not null check (json_valid(input_items)),
  created_at integer not null
) strict;
create index responses_by_tenant on responses (tenant_id, seq);
create index responses_by_age on responses (created_at);
