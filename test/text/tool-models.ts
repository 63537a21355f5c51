/** Models whose templates know tools, each as a family writes them: small tokenizers, the templates' own structure. */
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import type { LowerMessage, ToolDefinition } from "../../gateway/text/messages.ts";
import type { AddedToken, ModelText } from "../../gateway/text/model-text.ts";
import { callId } from "../../gateway/text/tool-data.ts";
import { byteLevelTokenizer } from "./models.ts";

/** As Qwen 2.5 and Hermes 3 write them; `<tool_call>` is an added token that is not special. */
const qwen = `{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are Qwen.' }}{%- endif %}{{- "\\n\\n# Tools\\n\\nFunctions within <tools></tools> tags:\\n<tools>" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "\\n</tools>\\n\\nReturn each call within <tool_call></tool_call>:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}{%- else %}{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}{%- endif %}{%- endif %}{%- for message in messages %}{%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- elif message.role == "assistant" %}{{- '<|im_start|>' + message.role }}{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}{%- for tool_call in message.tool_calls %}{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}{{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- elif message.role == "tool" %}{%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}{{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}{%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}`;

/** As Llama 3.1 writes them: tools in the first user's message, one call a message, results as JSON. */
const llama = `{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{%- set system_message = "" %}{%- endif %}{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}{%- if tools is defined %}{{- "Environment: ipython\\n" }}{%- endif %}{{- system_message }}{{- "<|eot_id|>" }}{%- if tools is defined %}{%- if messages | length != 0 %}{%- set first_user_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}{%- endif %}{{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}{{- "Given the following functions, respond with a JSON for a function call.\\n\\n" }}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{{- first_user_message + "<|eot_id|>"}}{%- endif %}{%- for message in messages %}{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}{%- elif 'tool_calls' in message %}{%- if not message.tool_calls|length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}{%- set tool_call = message.tool_calls[0].function %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}{%- elif message.role == "tool" or message.role == "ipython" %}{{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}{%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- "<|eot_id|>" }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}`;

/** As Mistral 0.3 writes them: tools before the last question, a list of calls after a token, ids of 9 characters. */
const mistral = `{%- set user_messages = messages | selectattr("role", "equalto", "user") | list %}{{- bos_token }}{%- for message in messages %}{%- if message["role"] == "user" %}{%- if tools is defined and tools is not none and (message == user_messages[-1]) %}{{- "[AVAILABLE_TOOLS] [" }}{%- for tool in tools %}{%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}{%- for key, val in tool.items() if key != "return" %}{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}{%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}{%- endif %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- elif message["role"] == "tool" %}{%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}{{- '[TOOL_RESULTS] {"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}{%- elif message.tool_calls is defined and message.tool_calls is not none %}{{- "[TOOL_CALLS] [" }}{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}{%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}{{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}{%- endfor %}{%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token }}{%- else %}{{- raise_exception("unknown role") }}{%- endif %}{%- endfor %}`;

/** As Mistral's later tokenizers have it: a token before each name, one before its arguments. */
const named = `{{- bos_token }}{%- for message in messages %}{%- if message["role"] == "user" %}{%- if tools and loop.last %}{{- "[AVAILABLE_TOOLS]" + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}{%- endif %}{{- "[INST]" + message["content"] + "[/INST]" }}{%- elif message["role"] == "tool" %}{{- "[TOOL_RESULTS]" + message.tool_call_id + "[TOOL_CONTENT]" + message.content + "[/TOOL_RESULTS]" }}{%- elif message["role"] == "assistant" %}{%- if message.tool_calls %}{{- message.content }}{%- for call in message.tool_calls %}{{- "[TOOL_CALLS]" + call.function.name + "[CALL_ID]" + call.id + "[ARGS]" + call.function.arguments|tojson }}{%- endfor %}{{- eos_token }}{%- else %}{{- message["content"] + eos_token }}{%- endif %}{%- else %}{{- raise_exception("unknown role") }}{%- endif %}{%- endfor %}`;

const text = (special: readonly string[], shown: readonly string[], chatTemplate: string): ModelText => {
  const tokenizer = byteLevelTokenizer([...special, ...shown]);
  const added: AddedToken[] = tokenizer.added_tokens.map((token) => ({
    ...token,
    special: special.includes(token.content),
  }));
  const [bos, eos] = special;
  return { tokenizer: { ...tokenizer, added_tokens: added }, config: { bos_token: bos, eos_token: eos }, chatTemplate };
};

const toolTokens = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];
const chatTokens = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"];
const instTokens = ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"];

export const toolModels = {
  qwen: text(chatTokens, toolTokens, qwen),
  /** The same words without tokens of their own. */
  hermes: text(chatTokens, [], qwen),
  llama: text(["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], [], llama),
  mistral: text([...instTokens, "[TOOL_RESULTS]", "[/TOOL_RESULTS]"], [], mistral),
  named: text([...instTokens, "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]"], [], named),
} as const satisfies Record<string, ModelText>;

export const weather: ToolDefinition = {
  name: "get_weather",
  description: "Weather of a city; today's.",
  parameters: {
    type: "object",
    properties: { city: { type: "string" }, days: { type: "integer" } },
    required: ["city"],
    additionalProperties: false,
  },
};
export const clock: ToolDefinition = {
  name: "clock",
  description: undefined,
  parameters: { type: "object", properties: {} },
};

/** The oracle: what the model's own library makes of it. Texts must hold no control token. */
export function ownToolTokens(model: ModelText, messages: readonly LowerMessage[], tools: readonly ToolDefinition[]) {
  const rendered = new Template(model.chatTemplate).render({
    messages: messages.map(({ role, content, calls, answers }) => ({
      role,
      content,
      ...(calls === undefined
        ? {}
        : {
            tool_calls: calls.map(({ id, name, arguments: given }) => ({
              id: callId(id),
              type: "function",
              function: { name, arguments: given },
            })),
          }),
      ...(answers === undefined ? {} : { tool_call_id: callId(answers.id), name: answers.name }),
    })),
    ...(tools.length === 0
      ? {}
      : { tools: tools.map((tool) => ({ type: "function", function: JSON.parse(JSON.stringify(tool)) })) }),
    add_generation_prompt: true,
    bos_token: model.config.bos_token,
    eos_token: model.config.eos_token,
  });
  return new Tokenizer(model.tokenizer, model.config).encode(rendered, { add_special_tokens: false }).ids;
}
