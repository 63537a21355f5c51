/**
 * Models that think before they answer, each with the structure of its family's template: where thinking is opened,
 * closed, shown again and switched off.
 */
import type { ModelText } from "../../gateway/text/model-text.ts";
import { byteLevelTokenizer } from "./models.ts";

/** As Qwen3 has it: the model opens its thinking; an empty one switches it off; earlier thinking stands beside calls. */
const qwen3 = `{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- "# Tools\\n\\n<tools>" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "\\n</tools>\\n\\nReturn each call within <tool_call></tool_call>:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}{%- set ns.searching = false %}{%- set ns.last_query = index %}{%- endif %}{%- endfor %}{%- for message in messages %}{%- set content = message.content if message.content is string else '' %}{%- if message.role == "user" or (message.role == "system" and not loop.first) %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{%- elif message.role == "assistant" %}{%- set reasoning_content = '' %}{%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}{%- elif '</think>' in content %}{%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{%- if loop.index0 > ns.last_query and (loop.last or reasoning_content) %}{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}{%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}{%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}{{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- elif message.role == "tool" %}{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}`;

/** As the distills of DeepSeek-R1 have it: the prompt opens the thinking, whose end earlier answers lose. */
const r1 = `{{- bos_token }}{%- for message in messages if message.role == 'system' %}{{- message.content }}{%- endfor %}{%- for message in messages %}{%- if message.role == 'user' %}{{- '<｜User｜>' + message.content }}{%- elif message.role == 'assistant' %}{%- set content = message.content %}{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}{{- '<｜Assistant｜>' + content + eos_token }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\\n' }}{%- endif %}`;

/** As SmolLM3 has it: a mode in the system message, and answers without thinking open with an empty one. */
const smollm3 = `{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}{%- set mode = '/think' if enable_thinking else '/no_think' -%}{{- '<|im_start|>system\\n## Metadata\\n\\nReasoning Mode: ' + mode + '\\n\\n## Custom Instructions\\n\\n' -}}{%- if messages[0].role == 'system' -%}{{- messages[0].content.rstrip() + '\\n\\n' -}}{%- elif enable_thinking -%}{{- 'Structure your answer as <think> Thought section </think> Solution section.\\n\\n' -}}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- for message in messages -%}{%- if message.role == 'user' -%}{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' -}}{%- elif message.role == 'assistant' -%}{%- if enable_thinking -%}{{- '<|im_start|>assistant\\n' + message.content.lstrip('\\n') + '<|im_end|>\\n' -}}{%- else -%}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' + message.content.lstrip('\\n') + '<|im_end|>\\n' -}}{%- endif -%}{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- if not enable_thinking -%}{{- '<think>\\n\\n</think>\\n' -}}{%- endif -%}{%- endif -%}`;

/** As Granite 3.3 has it: marks are words, around the answer too, and the model is told of them when it is to think. */
const granite = `{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set system_message = 'You are Granite.' %}{%- if thinking %}{%- set system_message = system_message + '\\nWrite your thoughts between <think></think> and write your response between <response></response> for each user query.' %}{%- endif %}{%- set loop_messages = messages %}{%- endif %}{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}{%- for message in loop_messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}{%- endfor %}`;

/** As gpt-oss has it (OpenAI's harmony format): every message names its channel; earlier thinking stands beside calls. */
const gptOss = `{%- macro build_system_message() -%}{{- 'You are ChatGPT.\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\\n\\n' }}{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{%- endif %}{{- 'Reasoning: ' + reasoning_effort + '\\n\\n# Valid channels: analysis, commentary, final.' }}{%- endmacro -%}{{- '<|start|>system<|message|>' }}{{- build_system_message() }}{{- '<|end|>' }}{%- if messages[0].role == 'developer' or messages[0].role == 'system' %}{%- set developer_message = messages[0].content %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set developer_message = '' %}{%- set loop_messages = messages %}{%- endif %}{%- if developer_message %}{{- '<|start|>developer<|message|># Instructions\\n\\n' + developer_message + '\\n\\n<|end|>' }}{%- endif %}{%- for message in loop_messages %}{%- if message.role == 'assistant' %}{%- if 'tool_calls' in message %}{%- set tool_call = message.tool_calls[0].function %}{%- if message.content and message.thinking %}{{- raise_exception('Cannot pass both content and thinking') }}{%- elif message.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}{{- '<|start|>assistant to=functions.' + tool_call.name + '<|channel|>commentary json<|message|>' + tool_call.arguments|tojson + '<|call|>' }}{%- elif loop.last and not add_generation_prompt %}{%- if 'thinking' in message %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}{%- endif %}{%- elif message.role == 'user' %}{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}`;

/** @param shown control tokens that are text in answers */
const text = (special: readonly string[], shown: readonly string[], chatTemplate: string): ModelText => {
  const tokenizer = byteLevelTokenizer([...special, ...shown]);
  const added = tokenizer.added_tokens.map((token) => ({ ...token, special: special.includes(token.content) }));
  const config = { bos_token: special[0], eos_token: special[1] };
  return { tokenizer: { ...tokenizer, added_tokens: added }, config, chatTemplate };
};

const chatTokens = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"];
const think = ["<think>", "</think>"];
const harmony = ["<|startoftext|>", "<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"];

export const reasoningModels = {
  qwen3: text(chatTokens, [...think, "<tool_call>", "</tool_call>"], qwen3),
  r1: text(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"], think, r1),
  smollm3: text(chatTokens, think, smollm3),
  granite: text(["<|end_of_text|>", "<|pad|>", "<|start_of_role|>", "<|end_of_role|>"], [], granite),
  gptOss: text(harmony, [], gptOss),
} as const satisfies Record<string, ModelText>;

export type ReasoningFamily = keyof typeof reasoningModels;

/** What each family's model writes behind a prompt that asks it to think. */
export const written: Readonly<Record<ReasoningFamily, (thinking: string, answer: string) => string>> = {
  qwen3: (thinking, answer) => `<think>\n${thinking}\n</think>\n\n${answer}`,
  r1: (thinking, answer) => `${thinking}\n</think>\n\n${answer}`,
  smollm3: (thinking, answer) => `<think>\n${thinking}\n</think>\n${answer}`,
  granite: (thinking, answer) => `<think>${thinking}</think>\n<response>${answer}</response>`,
  gptOss: (thinking, answer) =>
    `<|channel|>analysis<|message|>${thinking}<|end|><|start|>assistant<|channel|>final<|message|>${answer}`,
};

/** Variables with which the family's template asks for thinking. */
export const asksThinking: Readonly<Record<ReasoningFamily, Readonly<Record<string, boolean>>>> = {
  qwen3: {},
  r1: {},
  smollm3: {},
  granite: { thinking: true },
  gptOss: {},
};

export const reasoningFamilies = Object.keys(reasoningModels) as readonly ReasoningFamily[];
