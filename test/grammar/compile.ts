/** Grammars of schemas and of calls, as the server compiles them. */
import { type GrammarBounds, largestGrammar } from "../../gateway/grammar/budget.ts";
import { answerGrammar } from "../../gateway/tools/answer-grammar.ts";
import { type AnswerFormat, type AnswerRules, answerRules } from "../../gateway/tools/answer-rules.ts";
import type { ToolUse } from "../../gateway/tools/tool-use.ts";
import type { ByteGrammar } from "../../worker/contract/grammar.ts";

/** What cannot be kept of it. */
export class GrammarRefused extends Error {
  readonly param: string;

  constructor(param: string, message: string) {
    super(message);
    this.param = param;
  }
}

/** @throws GrammarRefused */
export function compile(rules: AnswerRules, bounds: GrammarBounds = largestGrammar): ByteGrammar {
  // As a thread gets it.
  const answer = answerGrammar(JSON.parse(JSON.stringify(rules)) as AnswerRules, bounds);
  if ("refusal" in answer) throw new GrammarRefused(answer.refusal.param, answer.refusal.message);
  return answer.grammar;
}

/** @throws GrammarRefused with a path that begins with `schema` */
export const schemaGrammar = (schema: unknown): ByteGrammar =>
  compile({ format: { kind: "schema", schema, param: "schema" } });

export const anyObjectGrammar = (): ByteGrammar => compile({ format: { kind: "object" } });

/** undefined: the answer is free. @throws GrammarRefused */
export function callGrammar(
  syntax: Parameters<typeof answerRules>[0],
  use: ToolUse,
  format?: AnswerFormat,
): ByteGrammar | undefined {
  const rules = answerRules(syntax, use, format);
  return rules && compile(rules);
}
