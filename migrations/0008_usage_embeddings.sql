-- Tokens of requests for embeddings and rankings, which no other column counts.
alter table usage_days add column embedding_tokens integer not null default 0;
