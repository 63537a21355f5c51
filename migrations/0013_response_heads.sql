-- What is known of a stored response beside its text. It is 'kept' while it can be asked for; 'retired' when it is beyond
-- what a tenant may keep and another one still goes on from it; 'deleted' when it is being taken away.
create table response_heads (
  seq integer primary key references responses (seq) on delete cascade,
  id text not null unique,
  tenant_id text not null,
  state text not null check (state in ('kept', 'retired', 'deleted')),
  -- The response that it goes on from: its own row has only what is new.
  previous_id text,
  byte_count integer not null,
  created_at integer not null
) strict;
insert into response_heads (seq, id, tenant_id, state, byte_count, created_at)
select seq, id, tenant_id, 'kept', octet_length(body) + octet_length(input_items), created_at from responses;
create index response_heads_by_tenant on response_heads (tenant_id, state, seq, byte_count);
create index response_heads_by_age on response_heads (created_at) where state = 'kept';
create index response_heads_deleted on response_heads (seq) where state = 'deleted';
drop index responses_by_age;

-- Which earlier responses a response goes on from, or refers to items of.
create table response_uses (
  user_seq integer not null references response_heads (seq) on delete cascade,
  used_seq integer not null references response_heads (seq) on delete cascade,
  primary key (user_seq, used_seq)
) strict, without rowid;
create index response_uses_of on response_uses (used_seq);
