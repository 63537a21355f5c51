/**
 * What callers wish of the model's thinking, in the words of OpenAI's, Anthropic's, OpenRouter's, Qwen's and vLLM's APIs.
 * A wish becomes a variable of the model's chat template, or a bound on the thinking's tokens; one that the model has no
 * means for is a hint, left out and named.
 */
import type { Context } from "hono";
import { z } from "zod";
import { limits as contractLimits } from "../../../worker/contract/limits.ts";
import { ApiError } from "../../base/errors.ts";
import type { Pipeline } from "../../generate/pipeline.ts";
import type { ChatRequest } from "../../generate/requests.ts";
import type { AppEnv } from "../transport/context.ts";
import { optional } from "../transport/fields.ts";

export const effort = z.enum(["none", "minimal", "low", "medium", "high", "xhigh", "max"]);
type Effort = z.output<typeof effort>;
const tokens = z.int().min(0).max(contractLimits.maxRequestTokens);

/** As Anthropic's clients and many others write it. */
export const thinkingSwitch = z.strictObject({
  type: z.enum(["enabled", "disabled", "adaptive", "auto"]),
  budget_tokens: optional(tokens),
  display: optional(z.enum(["summarized", "omitted"])),
});

/** Fields of chat completions. */
export const thinkingFields = {
  reasoning_effort: optional(effort),
  reasoning: optional(
    z.strictObject({ effort: optional(effort), max_tokens: optional(tokens), enabled: optional(z.boolean()) }),
  ),
  thinking: optional(z.union([z.boolean(), thinkingSwitch])),
  enable_thinking: optional(z.boolean()),
  thinking_budget: optional(tokens),
  thinking_token_budget: optional(tokens),
};
type ThinkingFields = Partial<{ [Name in keyof typeof thinkingFields]: z.output<(typeof thinkingFields)[Name]> }>;

/** What the prompt is made of is not the caller's to replace. */
const ownVariables: ReadonlySet<string> = new Set([
  ...["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"],
  ...["raise_exception", "strftime_now", "namespace", "range", "loop", "true", "false", "none"],
]);
/** Left out and named where the model's template does not read them; all others are an error then. */
const thinkingHints: ReadonlySet<string> = new Set(["enable_thinking", "thinking", "reasoning_effort"]);
const maxVariables = 16;
const maxWords = 16;

/**
 * A template writes texts into the prompt, where a control token could stand in them: what is passed is a single word,
 * a list of such words, a number, or true or false.
 */
const word = z.string().regex(/^[A-Za-z0-9][\w.-]{0,63}$/);
const variable = z.union([z.boolean(), z.int(), word, z.array(word).max(maxWords)]);
type Variable = z.output<typeof variable>;

export const templateVariables = z
  .record(z.string(), z.unknown())
  .superRefine((variables, context) => {
    const names = Object.keys(variables);
    const refuse = (path: readonly string[], message: string): void =>
      context.addIssue({ code: "custom", path: [...path], message, input: variables });
    if (names.length > maxVariables) return refuse([], `have more than ${maxVariables} entries`);
    const other = names.find(
      (name) =>
        !/^[A-Za-z_]\w{0,63}$/.test(name) ||
        ownVariables.has(name) ||
        (variables[name] !== null && !variable.safeParse(variables[name]).success && !thinkingHints.has(name)),
    );
    if (other !== undefined) refuse([other.slice(0, 64)], "is not passed to the model's chat template");
  })
  .transform((variables): Readonly<Record<string, unknown>> => variables);

/** What a request says of thinking. `field` is the path of what says it. */
export interface ThinkingWishes {
  /** `chat_template_kwargs` */
  readonly variables: Readonly<Record<string, unknown>>;
  readonly switches: readonly { readonly field: string; readonly on: boolean }[];
  readonly efforts: readonly { readonly field: string; readonly effort: Effort }[];
  readonly budgets: readonly { readonly field: string; readonly tokens: number }[];
  /** Where earlier thinking stands in the conversation; absent: nowhere. */
  readonly earlier?: string | undefined;
}

export const noWishes: ThinkingWishes = { variables: {}, switches: [], efforts: [], budgets: [] };

const listed = <Value, Wish>(value: Value | undefined, wish: (value: Value) => Wish): readonly Wish[] =>
  value === undefined ? [] : [wish(value)];

/** Wishes of a chat completion. */
export function chatWishes(body: ThinkingFields, variables: ThinkingWishes["variables"]): ThinkingWishes {
  const { thinking, reasoning } = body;
  const asked = typeof thinking === "boolean" ? undefined : thinking;
  return {
    variables,
    switches: [
      ...listed(body.enable_thinking, (on) => ({ field: "enable_thinking", on })),
      ...listed(typeof thinking === "boolean" ? thinking : undefined, (on) => ({ field: "thinking", on })),
      ...switchesOf("thinking", asked),
      ...listed(reasoning?.enabled, (on) => ({ field: "reasoning.enabled", on })),
    ],
    efforts: [
      ...listed(body.reasoning_effort, (wanted) => ({ field: "reasoning_effort", effort: wanted })),
      ...listed(reasoning?.effort, (wanted) => ({ field: "reasoning.effort", effort: wanted })),
    ],
    budgets: [
      ...listed(asked?.budget_tokens, (count) => ({ field: "thinking.budget_tokens", tokens: count })),
      ...listed(body.thinking_token_budget, (count) => ({ field: "thinking_token_budget", tokens: count })),
      ...listed(body.thinking_budget, (count) => ({ field: "thinking_budget", tokens: count })),
      ...listed(reasoning?.max_tokens, (count) => ({ field: "reasoning.max_tokens", tokens: count })),
    ],
  };
}

type Switch = { readonly type: z.output<typeof thinkingSwitch>["type"] };

/** "adaptive" and "auto" leave it to the model. */
export const switchesOf = (field: string, asked: Switch | undefined): ThinkingWishes["switches"] =>
  asked?.type === "enabled" || asked?.type === "disabled" ? [{ field, on: asked.type === "enabled" }] : [];

type Facts = Pick<Pipeline, "unreadVariables" | "marksThinking" | "showsThinking">;

/**
 * What of the wishes this model has means for. Hints that it has none for are named as left out.
 * @throws ApiError unsupported_field for variables that are no hints, and for hints where nothing may be left out
 */
export function readThinking(
  context: Context<AppEnv>,
  facts: Facts,
  model: string | undefined,
  wishes: ThinkingWishes,
): Required<Pick<ChatRequest, "variables">> & Pick<ChatRequest, "thinkingTokens"> {
  const { variables, left, refused } = readVariables(facts, model, wishes);
  const reads = (name: string): boolean => facts.unreadVariables(model, [name]).length === 0;
  const switchName = ["enable_thinking", "thinking"].find(
    (name) => wishes.switches.length + wishes.efforts.length > 0 && reads(name),
  );
  // A variable that is set already stays: those that the client named were set first, then its wishes in their order.
  const set = (name: string, value: Variable): void => {
    if (!Object.hasOwn(variables, name)) variables[name] = value;
  };
  for (const { field, on } of wishes.switches) {
    if (switchName === undefined) left.push(field);
    else set(switchName, on);
  }
  for (const { field, effort: wanted } of wishes.efforts) {
    const hasLevels = wanted !== "none" && reads("reasoning_effort");
    if (hasLevels) set("reasoning_effort", levelOf(wanted));
    if (switchName !== undefined) set(switchName, wanted !== "none");
    else if (!hasLevels) left.push(field);
  }
  const [budget] = wishes.budgets;
  const isBounded = budget !== undefined && facts.marksThinking(model);
  if (!isBounded) left.push(...wishes.budgets.map(({ field }) => field));
  if (wishes.earlier !== undefined && !facts.showsThinking(model)) left.push(wishes.earlier);
  const strict = context.get("strict") === true ? left[0] : undefined;
  const param = refused ?? strict;
  if (param !== undefined) {
    const message = `'${param}' is not read by the model's chat template.`;
    throw new ApiError("unsupported_field", { message, param });
  }
  if (left.length > 0) context.set("ignored", [...(context.get("ignored") ?? []), ...new Set(left)]);
  return { variables, thinkingTokens: isBounded ? budget.tokens : undefined };
}

/** Models know three levels. */
const levelOf = (wanted: Exclude<Effort, "none">): string =>
  wanted === "minimal" ? "low" : wanted === "xhigh" || wanted === "max" ? "high" : wanted;

function readVariables(facts: Facts, model: string | undefined, { variables: asked }: ThinkingWishes) {
  const names = Object.keys(asked).filter((name) => asked[name] !== null);
  const unread = new Set(names.length === 0 ? [] : facts.unreadVariables(model, names));
  const variables: Record<string, Variable> = {};
  for (const name of names) {
    const value = variable.safeParse(asked[name]);
    if (value.success && !unread.has(name)) variables[name] = value.data;
  }
  const dropped = names.filter((name) => !Object.hasOwn(variables, name));
  const other = dropped.find((name) => !thinkingHints.has(name));
  const left = dropped.map((name) => `chat_template_kwargs.${name}`);
  return { variables, left, refused: other && `chat_template_kwargs.${other}` };
}
