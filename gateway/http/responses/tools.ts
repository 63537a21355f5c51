/** Tools as responses have them: a search that the server makes, functions that the caller has. */
import { z } from "zod";
import type { ChatRequest } from "../../generate/requests.ts";
import { toolLimits } from "../../tools/limits.ts";
import type { OfferedTool } from "../../tools/tool-use.ts";
import { fileSearchFields, fileSearchOf } from "../generation/request-fields.ts";
import {
  checkTools,
  parametersSchema,
  type Refuse,
  type ToolChoice,
  type ToolsAsked,
  toolDescription,
  toolName,
} from "../generation/tool-schemas.ts";
import { optional } from "../transport/fields.ts";

const onlyThese = "only the tools 'function' and 'file_search' are supported";
const notSupported = "is not supported";

const functionTool = z
  .strictObject({
    type: z.literal("function"),
    name: toolName,
    description: optional(toolDescription),
    parameters: optional(parametersSchema),
    strict: optional(z.boolean()),
    // Values that mean what this server does anyway.
    async: optional(z.literal(false, notSupported)),
    defer_loading: optional(z.literal(false, notSupported)),
    allowed_callers: optional(z.array(z.literal("direct", notSupported)).max(1)),
    output_schema: z.null(notSupported).optional(),
  })
  .transform(({ type, name, description = null, parameters = null, strict = false }) => {
    return { type, name, description, parameters, strict };
  });

const namedFunction = z.strictObject({ type: z.literal("function"), name: toolName });
const fileSearchChoice = z.strictObject({ type: z.literal("file_search") });

/** @param filters the corpus side's schema of a search's filters */
export const responseToolFields = (filters: z.ZodType) => ({
  tools: optional(
    z
      .array(
        z.discriminatedUnion(
          "type",
          [functionTool, z.strictObject({ type: z.literal("file_search"), ...fileSearchFields(filters) })],
          onlyThese,
        ),
      )
      .max(toolLimits.tools + 1),
  ),
  tool_choice: optional(
    z.union([
      z.enum(["none", "auto", "required"]),
      z.discriminatedUnion(
        "type",
        [
          namedFunction,
          fileSearchChoice,
          z.strictObject({
            type: z.literal("allowed_tools"),
            mode: z.enum(["auto", "required"]),
            tools: z
              .array(z.discriminatedUnion("type", [namedFunction, fileSearchChoice], onlyThese))
              .min(1)
              .max(toolLimits.tools + 1),
          }),
        ],
        "only function, file_search and allowed_tools are supported",
      ),
    ]),
  ),
  parallel_tool_calls: optional(z.boolean()),
});

type Fields = ReturnType<typeof responseToolFields>;
type Body = { [Name in keyof Fields]: z.output<Fields[Name]> };

export interface ResponseTools {
  readonly functions: ToolsAsked;
  /** The search that is made before the model is asked, and where it stands among the tools. */
  readonly fileSearch: ChatRequest["fileSearch"];
  readonly searchIndex: number;
}

export function responseTools({
  tools = [],
  tool_choice: choice,
  parallel_tool_calls: parallel = true,
}: Body): ResponseTools {
  const searchIndex = tools.findIndex(({ type }) => type === "file_search");
  const search = tools[searchIndex];
  const functions = tools.flatMap((tool, index): readonly OfferedTool[] => {
    if (tool.type !== "function") return [];
    const { name, description, strict } = tool;
    const parameters = tool.parameters ?? { type: "object", properties: {}, additionalProperties: false };
    return [{ name, description: description ?? undefined, parameters, strict, param: `tools[${index}].parameters` }];
  });
  const isSearched = search?.type === "file_search" && wantsSearch(choice);
  return {
    functions: { tools: functions, namePath: ["name"], choice: choiceOf(choice, isSearched), parallel },
    // A caller who sends the search tool wants the search, unless tool_choice forbids it.
    fileSearch: isSearched ? fileSearchOf(search) : undefined,
    searchIndex: Math.max(0, searchIndex),
  };
}

function wantsSearch(choice: Body["tool_choice"]): boolean {
  if (choice === undefined || typeof choice === "string") return choice !== "none";
  if (choice.type === "allowed_tools") return choice.tools.some(({ type }) => type === "file_search");
  return choice.type === "file_search";
}

function choiceOf(choice: Body["tool_choice"], isSearched: boolean): ToolChoice {
  if (choice === undefined) return { mode: "auto" };
  // A search that is made counts as use of a tool.
  if (typeof choice === "string") return { mode: choice === "required" && isSearched ? "auto" : choice };
  if (choice.type === "file_search") return { mode: "none" };
  if (choice.type === "function")
    return { mode: "required", isNamed: true, names: [{ name: choice.name, path: ["tool_choice", "name"] }] };
  const names = choice.tools.flatMap((tool, index) =>
    tool.type === "function" ? [{ name: tool.name, path: ["tool_choice", "tools", index, "name"] }] : [],
  );
  if (names.length === 0) return { mode: "none" };
  return { mode: isSearched ? "auto" : choice.mode, names };
}

export function checkResponseTools(body: Body, refuse: Refuse): void {
  const { tools = [], tool_choice: choice } = body;
  const { functions, searchIndex } = responseTools(body);
  const twice = tools.findIndex(({ type }, index) => type === "file_search" && index !== searchIndex);
  if (twice >= 0) refuse(["tools", twice], "is a second file_search: one may name several vector stores");
  const asksSearch = typeof choice === "object" && wantsSearch(choice);
  if (asksSearch && !tools.some(({ type }) => type === "file_search")) refuse(["tool_choice"], "needs a tool");
  // Functions are counted among all tools.
  const places = tools.flatMap(({ type }, index) => (type === "function" ? [index] : []));
  checkTools(functions, (path, text) => {
    const [field, at] = path;
    const isPlace = field === "tools" && typeof at === "number";
    refuse(isPlace ? ["tools", places[at] ?? at, ...path.slice(2)] : path, text);
  });
}
