-- Where a job is to bring its fragments' KV; null: to a worker, and to files where the server keeps any.
alter table jobs add column target text check (target in ('device', 'host', 'disk', 's3'));
-- Where a pinned fragment's KV stays.
alter table fragment_pins add column tier text not null default 'device' check (tier in ('device', 'host', 'disk', 's3'));
