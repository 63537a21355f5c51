-- Bytes of KV that a tenant may keep on each worker; null: what its share of the pool allows.
alter table tenant_limits add column kv_bytes integer check (kv_bytes > 0);
