"""Trains the byte-level BPE on pages, people and natural paragraphs and writes tokenizer.json and tokenizer_config.json.

    python3 make_tokenizer.py <folder> [<natural.txt>] [<entries>]
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import generate as G
import reading as R
import vocabulary as V

VOCAB = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen2's: single digits, words with one leading space or sign, runs of signs, line ends
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def texts(lib, count):
    """A quarter people, the rest pages, natural paragraphs and WordNet's glosses."""
    for i in range(count):
        r = random.Random(f"train-tokenizer-{i}")
        x = i % 8
        if x == 7 and lib.paragraphs:
            yield "\n".join(r.sample(lib.paragraphs, 3))
            yield "\n".join(f"{w}: {g}" for w, g in r.sample(R.glosses(), 8))
            yield f"{V.person(r)} {V.town(r)} {V.company(r)} {V.email(r)} {V.code(r)}"
            continue
        s = G.sample(r, 1500) if x < 2 else R.pages_sample(r, lib, 2000, 10)
        yield from s["documents"]
        yield f"{s.get('role', 'document')}\n{s.get('system') or ''}"
        for t in s["turns"]:
            yield "user\n" + t["question"]
            yield "assistant\n" + t["answer"]


def main(folder, natural=None, entries=VOCAB, pages=None, count=16000):
    lib = R.Library(pages, natural)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=int(entries), special_tokens=[AddedToken(x, special=True, normalized=False) for x in SPECIAL],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    t.train_from_iterator(texts(lib, int(count)), trainer)
    assert t.get_vocab_size() == int(entries) and [t.token_to_id(x) for x in SPECIAL] == [0, 1, 2]
    t.save(os.path.join(folder, "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_prefix_space": False, "bos_token": None,
              "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "clean_up_tokenization_spaces": False,
              "model_max_length": 32768, "additional_special_tokens": SPECIAL[1:],
              "added_tokens_decoder": {str(i): {"content": x, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
                                       for i, x in enumerate(SPECIAL)},
              "chat_template": CHAT}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
