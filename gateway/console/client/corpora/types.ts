/** What the API says of corpora, their files and fragments: the fields that these pages read. */

export interface FileCounts {
  readonly in_progress: number;
  readonly completed: number;
  readonly failed: number;
  readonly cancelled: number;
  readonly total: number;
}

export interface Corpus {
  readonly id: string;
  readonly name: string;
  readonly status: "in_progress" | "completed" | "expired";
  readonly usage_bytes: number;
  readonly file_counts: FileCounts;
  /** Unix time in seconds. */
  readonly last_active_at: number;
}

export interface CorpusFile {
  readonly id: string;
  readonly status: "in_progress" | "completed" | "failed" | "cancelled";
  readonly last_error: { readonly code: string; readonly message: string } | null;
  readonly usage_bytes: number;
  readonly attributes: Readonly<Record<string, string | number | boolean>>;
  readonly spangate?: { readonly filename: string; readonly bytes: number };
}

export interface Fragment {
  readonly id: string;
  readonly file_id: string;
  readonly filename: string;
  readonly index: number;
  readonly span_tokens: number | null;
  readonly text_tokens: number;
  readonly prepared: { readonly worker: number | null; readonly at: number } | null;
  readonly pinned: boolean;
  readonly resident: readonly { readonly worker: number | null; readonly tier: string }[];
}

export interface PrepareJob {
  readonly id: string;
  readonly status: "queued" | "running" | "completed" | "failed" | "cancelled";
  readonly done: number;
  readonly total: number;
  readonly error: { readonly code: string; readonly message: string | null } | null;
}
