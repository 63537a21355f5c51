-- How many rows of the audit log each actor has: a tenant, or, under the empty name, the platform.
create table audit_counts (
  actor text primary key,
  row_count integer not null
) strict, without rowid;

insert into audit_counts (actor, row_count)
select coalesce(actor_tenant_id, ''), count(*) from audit_events group by 1;

create trigger audit_event_added after insert on audit_events begin
  insert into audit_counts (actor, row_count) values (coalesce(new.actor_tenant_id, ''), 1)
  on conflict (actor) do update set row_count = row_count + 1;
end;

create trigger audit_event_removed after delete on audit_events begin
  update audit_counts set row_count = row_count - 1 where actor = coalesce(old.actor_tenant_id, '');
  delete from audit_counts where actor = coalesce(old.actor_tenant_id, '') and row_count <= 0;
end;
