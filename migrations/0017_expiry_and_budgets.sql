-- When a key ends to be valid; null: never.
alter table api_keys add column expires_at integer;

-- Tokens that may be computed for a tenant in a day and in a month (UTC); null: as many as come.
alter table tenant_limits add column tokens_per_day integer check (tokens_per_day > 0);
alter table tenant_limits add column tokens_per_month integer check (tokens_per_month > 0);

-- A tenant's budgets are compared with its own days, whoever else has any.
create index usage_days_by_tenant on usage_days (tenant_id, day);
