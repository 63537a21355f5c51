/** The messages between the event loop and a thread. */

/** A task takes one value and returns one; both are copied by structured clone. */
// biome-ignore lint/suspicious/noExplicitAny: a table holds functions of any input
export type TaskTable = Readonly<Record<string, (input: any) => unknown>>;

export type InputOf<Table extends TaskTable, Name extends keyof Table> = Parameters<Table[Name]>[0];
export type OutputOf<Table extends TaskTable, Name extends keyof Table> = Awaited<ReturnType<Table[Name]>>;

export interface TaskMessage {
  readonly name: string;
  readonly input: unknown;
}

export interface TaskAnswer {
  /** Bytes of the thread's own heap after the task, garbage included. */
  readonly heapBytes: number;
  /** What went wrong, for the log; undefined: the task succeeded, and `output` is its result. */
  readonly failure?: string;
  readonly output?: unknown;
}
