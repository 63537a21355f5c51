/** Model folders' text side for tests: a byte-level tokenizer with a few merges, and three kinds of template. */
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import { ChatTemplate } from "../../gateway/text/chat-template.ts";
import type { AddedToken, ModelText, TokenizerJson } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";

const pattern =
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const merges = ["t h", "Ġ t", "Ġt h", "Ġth e", "i n", "< |", "| >", "e r", "u s", "us er", "s y", "Ċ Ċ", "Ġ Ġ", "a n"];

function byteChars(): string[] {
  const chars: string[] = [];
  let next = 0x100;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    chars.push(String.fromCodePoint(printable ? byte : next++));
  }
  return chars;
}

export function byteLevelTokenizer(controls: readonly string[], flags: Partial<AddedToken> = {}): TokenizerJson {
  const tokens = [...controls, ...byteChars(), ...merges.map((merge) => merge.replace(" ", ""))];
  const vocab = Object.fromEntries(tokens.map((token, id) => [token, id]));
  return {
    version: "1.0",
    added_tokens: controls.map((content, id) => ({
      id,
      content,
      special: true,
      lstrip: false,
      rstrip: false,
      normalized: false,
      single_word: false,
      ...flags,
    })),
    normalizer: null,
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [
        { type: "Split", pattern: { Regex: pattern }, behavior: "Isolated", invert: false },
        { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { type: "BPE", vocab, merges, byte_fallback: false, ignore_merges: false },
  };
}

const chatml =
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const llama3 =
  "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
/** Knows four roles only, wants users and assistants in turn, and has a default system message. */
const strict =
  "{%- if messages[0].role == 'system' %}{%- set rest = messages[1:] %}{{- bos_token + '<sys>' + messages[0].content | trim + '</sys>\n' }}{%- else %}{%- set rest = messages %}{{- bos_token + '<sys>Be brief.</sys>\n' }}{%- endif %}{%- for m in rest %}{%- if m.role not in ['user', 'assistant'] %}{{- raise_exception('unknown role ' + m.role) }}{%- endif %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}{{- '<' + m.role + '>' + m.content | trim + '<end>' + '\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}";

/** Writes the system message into the first user's, as Llama 2 does; a turn begins with no token of its own. */
const folding =
  "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set sys = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set sys = false %}{% endif %}{% for m in rest %}{% if loop.index0 == 0 and sys != false %}{% set content = '<<SYS>>' + sys + '<</SYS>>' + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}{% if m['role'] == 'user' %}{{ '<s>[INST] ' + content + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + content + ' </s>' }}{% else %}{{ raise_exception('unknown role') }}{% endif %}{% endfor %}";

/** Has a default system message, and opens the answer after the last message only (as Granite 3 does). */
const granite =
  "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}{%- else %}{%- set system = 'You are Granite.' %}{%- set rest = messages %}{%- endif %}{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\n' }}{%- for m in rest %}{{- '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}{%- endfor %}";

/** Closes a question with a token and opens no answer, refuses two questions in a row (as Mistral 0.3 does). */
const mistral =
  "{{- bos_token }}{%- for m in messages %}{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}{%- if m['role'] == 'user' %}{{- '[INST] ' + m['content'] + '[/INST]' }}{%- elif m['role'] == 'assistant' %}{{- ' ' + m['content'] | trim + eos_token }}{%- else %}{{- raise_exception('unknown role') }}{%- endif %}{%- endfor %}";

const text = (controls: readonly string[], chatTemplate: string, flags: Partial<AddedToken> = {}): ModelText => ({
  tokenizer: byteLevelTokenizer(controls, flags),
  config: { bos_token: controls[0], eos_token: controls[1] },
  chatTemplate,
});

export const models = {
  chatml: text(["<|endoftext|>", "<|im_end|>", "<|im_start|>"], chatml),
  llama3: text(["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], llama3),
  strict: text(["<s>", "<end>", "<sys>", "</sys>", "<user>", "<assistant>"], strict),
  folding: text(["<s>", "</s>"], folding),
  granite: text(["<|end_of_text|>", "<|pad|>", "<|start_of_role|>", "<|end_of_role|>"], granite),
  rstrip: text(["<|endoftext|>", "<|im_end|>", "<|im_start|>"], chatml, { rstrip: true }),
} as const satisfies Record<string, ModelText>;

/** Takes no system message. */
export const mistralModel: ModelText = text(["<s>", "</s>", "[INST]", "[/INST]"], mistral);

/** The oracle: what the model's own library makes of the rendered conversation. Contents must hold no control token. */
export function ownTokens(model: ModelText, messages: readonly { role: string; content: string }[]): number[] {
  const rendered = new Template(model.chatTemplate).render({
    messages,
    add_generation_prompt: true,
    bos_token: model.config.bos_token,
    eos_token: model.config.eos_token,
  });
  return new Tokenizer(model.tokenizer, model.config).encode(rendered, { add_special_tokens: false }).ids;
}

export function textSide(model: ModelText): { tokenizer: TextTokenizer; template: ChatTemplate } {
  return { tokenizer: new TextTokenizer(model, { cacheBytes: 1_000_000 }), template: new ChatTemplate(model) };
}
