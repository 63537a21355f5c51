-- Fragments whose KV is evicted last, and made anew when a worker has lost it; blocks as the model served then counts.
create table fragment_pins (
  fragment_seq integer primary key references fragments (seq) on delete cascade,
  tenant_id text not null references tenants (id) on delete cascade,
  blocks integer not null check (blocks >= 0)
) strict;

create index fragment_pins_of_tenant on fragment_pins (tenant_id);
