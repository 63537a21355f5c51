/** Makes the grammar of a whole answer: of its format, and of calls where they are allowed. One budget bounds both. */
import type { ByteGrammar, GrammarSymbol } from "../../worker/contract/grammar.ts";
import { Budget, type GrammarBounds, GrammarTooLarge } from "../grammar/budget.ts";
import { GrammarBuilder } from "../grammar/builder.ts";
import { schemaRule } from "../grammar/json-schema.ts";
import { anyObject } from "../grammar/json-values.ts";
import { SchemaFault } from "../grammar/schema-parts.ts";
import type { AnswerFormat, AnswerRules, CallableTool } from "./answer-rules.ts";
import { argumentsRule, callRule } from "./call-grammar.ts";
import { thinkingRule } from "./marked-text.ts";

/** Tells the client what a grammar cannot express. */
export interface GrammarRefusal {
  readonly param: string;
  readonly message: string;
}

export type AnswerGrammar =
  | { readonly grammar: ByteGrammar }
  /** `isTooLarge`: the budget ran out, so larger bounds might allow the grammar. */
  | { readonly refusal: GrammarRefusal; readonly isTooLarge: boolean };

export function answerGrammar(rules: AnswerRules, bounds: GrammarBounds): AnswerGrammar {
  const budget = new Budget(bounds);
  try {
    return { grammar: compile(rules, new GrammarBuilder(budget)) };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { refusal: error.refusal, isTooLarge: budget.isSpent };
  }
}

class Refused extends Error {
  readonly refusal: GrammarRefusal;

  constructor(param: string, message: string) {
    super(message);
    this.refusal = { param, message };
  }
}

function compile(rules: AnswerRules, it: GrammarBuilder): ByteGrammar {
  const refuse = (what: { readonly ofCalls: string; readonly ofFormat: string }): Refused =>
    rules.calls === undefined && rules.format?.kind === "schema"
      ? formatRefusal(rules.format.param, what.ofFormat)
      : new Refused("tools", `'tools' ${what.ofCalls}.`);
  try {
    const whole = it.declare();
    const { format, calls } = rules;
    const formatted = format && formatRule(it, format);
    const answer = calls === undefined ? formatted : callRule(it, calls, formatted, argumentsIn(it));
    if (answer === undefined) throw new Error("an answer with a grammar has a format or calls");
    it.define(whole, [[rules.thinking === undefined ? answer : thinkingRule(it, rules.thinking, answer)]]);
  } catch (error) {
    if (!(error instanceof GrammarTooLarge)) throw error;
    throw refuse({ ofCalls: "are too many, or their schemas too large", ofFormat: "is too large" });
  }
  const grammar = it.build();
  if (grammar === undefined) throw refuse({ ofCalls: "have no call that is finite", ofFormat: "has no finite value" });
  return grammar;
}

function formatRule(it: GrammarBuilder, format: AnswerFormat): GrammarSymbol {
  if (format.kind === "object") return anyObject(it);
  try {
    return schemaRule(it, format.schema);
  } catch (error) {
    throw error instanceof SchemaFault ? formatRefusal(pathIn(format.param, error), error.message) : error;
  }
}

const formatRefusal = (param: string, what: string): Refused => new Refused(param, `'${param}': ${what}.`);

const argumentsIn =
  (it: GrammarBuilder) =>
  (tool: CallableTool): GrammarSymbol => {
    try {
      return argumentsRule(it, tool);
    } catch (error) {
      if (!(error instanceof SchemaFault)) throw error;
      const param = pathIn(tool.param, error);
      throw new Refused(param, `'${param}' ${error.message}.`);
    }
  };

const maxParamChars = 256;

const pathIn = (param: string, { path }: SchemaFault): string =>
  path
    .reduce<string>((all, part) => all + (typeof part === "number" ? `[${part}]` : `.${part}`), param)
    .slice(0, maxParamChars);
