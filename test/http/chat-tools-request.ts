/** A question with two tools, as chat completions take it. */
import { question } from "./chat-rig.ts";

export const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const tool = (fields: object = {}) => ({
  type: "function",
  function: { name: "get_weather", description: "Weather", parameters, ...fields },
});
export const asked = { ...question, max_tokens: 200, tools: [tool(), tool({ name: "clock", parameters: undefined })] };
