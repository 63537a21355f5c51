-- Batches that have ended and whose results are being taken away, in pieces.
alter table batches add column results_left integer not null default 0;
create index batches_results_left on batches (seq) where results_left = 1;
