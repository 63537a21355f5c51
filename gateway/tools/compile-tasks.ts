/**
 * The tasks of the threads: heavy work on text that must not hold up the event loop. To add a task, write a function of
 * one input in the folder that it belongs to, enter it here under its name, let the table of imports in
 * test/tidy.test.ts allow that folder for `gateway/threads`, and call
 * `pool.run(name, input, { tenantId, maxMs, signal })`. Rules for a task:
 *
 * - Input and output are plain data. They are copied between threads, and the event loop does the copying, so both have
 *   to be small (well under a megabyte; a typed array is cheaper than many small objects).
 * - A task keeps nothing of a tenant: the same thread serves all tenants, one after the other.
 * - An error in what the caller sent is part of the output. A task throws only for the server's own mistakes.
 * - A task bounds its own work and memory. The time limit is only for mistakes, since it ends the whole thread.
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
