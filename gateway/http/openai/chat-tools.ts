/** Tools as chat completions have them. */
import { z } from "zod";
import { toolLimits } from "../../tools/limits.ts";
import type { OfferedTool } from "../../tools/tool-use.ts";
import {
  parametersSchema,
  type ToolChoice,
  type ToolsAsked,
  toolDescription,
  toolName,
} from "../generation/tool-schemas.ts";
import { optional } from "../transport/fields.ts";

const onlyFunctions = "only tools of type 'function' are supported";
const functionTool = z.strictObject({
  type: z.literal("function", onlyFunctions),
  function: z.strictObject({
    name: toolName,
    description: optional(toolDescription),
    parameters: optional(parametersSchema),
    strict: optional(z.boolean()),
  }),
});

const namedFunction = z.strictObject({
  type: z.literal("function", onlyFunctions),
  function: z.strictObject({ name: toolName }),
});

export const chatToolFields = {
  tools: optional(z.array(functionTool).max(toolLimits.tools)),
  tool_choice: optional(
    z.union([
      z.enum(["none", "auto", "required"]),
      namedFunction,
      z.strictObject({
        type: z.literal("allowed_tools"),
        allowed_tools: z.strictObject({
          mode: z.enum(["auto", "required"]),
          tools: z.array(namedFunction).min(1).max(toolLimits.tools),
        }),
      }),
    ]),
  ),
  parallel_tool_calls: optional(z.boolean()),
};

type Body = { [Name in keyof typeof chatToolFields]: z.output<(typeof chatToolFields)[Name]> };

export function chatToolsAsked({ tools, tool_choice: choice, parallel_tool_calls: parallel }: Body): ToolsAsked {
  const offered = (tools ?? []).map(({ function: { name, description, parameters, strict } }, index): OfferedTool => {
    const schema = parameters ?? { type: "object", properties: {}, additionalProperties: false };
    const param = `tools[${index}].function.parameters`;
    return { name, description, parameters: schema, strict: strict ?? false, param };
  });
  return { tools: offered, namePath: ["function", "name"], choice: choiceOf(choice), parallel: parallel ?? true };
}

function choiceOf(choice: Body["tool_choice"]): ToolChoice {
  if (choice === undefined) return { mode: "auto" };
  if (typeof choice === "string") return { mode: choice };
  if (choice.type === "function") {
    const { name } = choice.function;
    return { mode: "required", isNamed: true, names: [{ name, path: ["tool_choice", "function", "name"] }] };
  }
  const { mode, tools } = choice.allowed_tools;
  const at = (index: number) => ["tool_choice", "allowed_tools", "tools", index, "function", "name"];
  return { mode, names: tools.map(({ function: { name } }, index) => ({ name, path: at(index) })) };
}
