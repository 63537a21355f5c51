/**
 * What threads do: heavy work on text, off the event loop. To add a task: write a function of one input in the folder
 * that it belongs to, enter it here under its name, let the table of imports in test/tidy.test.ts allow that folder for
 * `gateway/threads`, and call `pool.run(name, input, { tenantId, maxMs, signal })`. Rules for a task:
 *
 * - Input and output are plain data: they are copied between threads, and the copying is done on the event loop, so both
 *   have to be small (well under a megabyte; a typed array is cheaper than many small objects).
 * - It keeps nothing of a tenant: the same thread serves all of them, one after the other.
 * - What a caller is to be told (a fault in his text) is part of the output. What a task throws is a mistake of ours.
 * - It has bounds of its own on work and memory. The time limit only ends what has none: it costs the thread.
 *
 * Only threads import this file; the event loop imports its type.
 */
import { largestGrammar } from "../grammar/budget.ts";
import type { TaskTable } from "../threads/protocol.ts";
import { answerGrammar } from "./answer-grammar.ts";
import type { AnswerRules } from "./answer-rules.ts";

export const tasks = {
  /** @param rules AnswerRules as JSON: one string is copied faster than many objects */
  answerGrammar: (rules: string) => answerGrammar(JSON.parse(rules) as AnswerRules, largestGrammar),
} satisfies TaskTable;

export type Tasks = typeof tasks;
