-- What makes room in a tenant's part of the bucket, and what of each tenant waits to be copied there: neither looks at others' objects.
drop index kv_objects_of_tenant_in_bucket;
create index kv_objects_of_tenant_in_bucket on kv_objects (tenant_id, used_at) where in_bucket = 2 and pinned = 0;
create index kv_objects_of_tenant_to_upload on kv_objects (tenant_id, used_at) where on_disk = 1 and in_bucket < 2;
