/** Tools as Anthropic's messages have them. */
import { z } from "zod";
import { toolLimits } from "../../tools/limits.ts";
import type { OfferedTool } from "../../tools/tool-use.ts";
import { parametersSchema, type ToolChoice, type ToolsAsked, toolDescription } from "../generation/tool-schemas.ts";
import { optional } from "../transport/fields.ts";

export const messageToolName = z.string().regex(/^[a-zA-Z0-9_-]{1,128}$/, "must be 1 to 128 letters, digits, _ or -");
const notSupported = "is not supported";

/** @param cacheControl schema of `cache_control` */
export function messageToolFields<CacheControl extends z.ZodType>(cacheControl: CacheControl) {
  const tool = z.strictObject({
    type: optional(z.literal("custom", "only tools of type 'custom' are supported")),
    name: messageToolName,
    description: optional(toolDescription),
    input_schema: parametersSchema,
    strict: optional(z.boolean()),
    cache_control: cacheControl,
    // Values that mean what this server does anyway: arguments are streamed as they come.
    eager_input_streaming: optional(z.boolean()),
    defer_loading: optional(z.literal(false, notSupported)),
    allowed_callers: optional(z.array(z.literal("direct", notSupported)).max(1)),
    input_examples: optional(z.array(z.unknown()).max(0, notSupported)),
  });
  const disableParallel = { disable_parallel_tool_use: optional(z.boolean()) };
  return {
    tools: optional(z.array(tool).max(toolLimits.tools)),
    tool_choice: optional(
      z.discriminatedUnion("type", [
        z.strictObject({ type: z.literal("auto"), ...disableParallel }),
        z.strictObject({ type: z.literal("any"), ...disableParallel }),
        z.strictObject({ type: z.literal("tool"), name: messageToolName, ...disableParallel }),
        z.strictObject({ type: z.literal("none") }),
      ]),
    ),
  };
}

type Fields = ReturnType<typeof messageToolFields<z.ZodType>>;
type Body = { [Name in keyof Fields]: z.output<Fields[Name]> };

export function messageToolsAsked({ tools = [], tool_choice: choice }: Body): ToolsAsked {
  const offered = tools.map(({ name, description, input_schema: parameters, strict = false }, index): OfferedTool => {
    return { name, description, parameters, strict, param: `tools[${index}].input_schema` };
  });
  const parallel = choice === undefined || choice.type === "none" || choice.disable_parallel_tool_use !== true;
  return { tools: offered, namePath: ["name"], choice: choiceOf(choice), parallel };
}

function choiceOf(choice: Body["tool_choice"]): ToolChoice {
  if (choice === undefined) return { mode: "auto" };
  if (choice.type === "any") return { mode: "required" };
  if (choice.type !== "tool") return { mode: choice.type };
  return { mode: "required", isNamed: true, names: [{ name: choice.name, path: ["tool_choice", "name"] }] };
}
