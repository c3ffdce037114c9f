#!/usr/bin/env python3
"""Makes the tokenizer test data under tests/data/tokenizers from the reference libraries.

  python tools/make_tokenizer_goldens.py --smollm models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \
      --mistral tests/data/tokenizers/mistral

Needs the packages `tokenizers` and `sentencepiece`. Output is the same on every run.
"""

import argparse
import gzip
import json
import random
import struct
from pathlib import Path

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\n", "\r\n", "\r", " \n \n", "a", "Hello",
    "Hello world", " Hello world", "  Hello  world  ", "Hello, y'all! How are you?",
    "I'll we've HE'S it'S DON'T they'RE I'M you'D 'tis 'Twas rock 'n' roll",
    "I\u2019ll we\u2019ve it\u2019s \u201cquoted\u201d \u2018single\u2019 \u2014 dash \u2013 en",
    "0 1 12 123 1234 12345 3.14159 1,000,000 0x1F 1e-9 2024-02-30T12:34:56Z 50% $99.99 1/2",
    "\u00bd \u00b2 \u2167 \u0663\u0664\u0665 \u0967\u0968\u0969 \uff11\uff12\uff13 \u4e00\u4e8c\u4e09",
    "na\u00efve caf\u00e9 \u00c4pfel stra\u00dfe \u0130stanbul \u017f \u1e9e \u00e6 \u00f8 \u00fe",
    "cafe\u0301 e\u0301\u0302 a\u0323\u0307 a\u0307\u0323 \u1e69 s\u0323\u0307 \u212b \u2126 \ufb01 \u1100\u1161\u11a8",
    "Z\u0351\u036b\u0343\u036a\u0302A\u0334\u0335\u031e\u0349L\u0321\u032d\u0349G\u0335\u033b\u0317O\u0322\u031b!",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3000\u30ab\u30bf\u30ab\u30ca \uff76\uff9e \u304c \u304b\u3099",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 \u3131\u3134\u3137",
    "\u043d\u0435\u0449\u043e \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438 \u0401\u043b\u043a\u0430 \u0439",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0627\u0644\u0633\u064e\u0651\u0644\u064e\u0627\u0645\u064f \u0639\u064e\u0644\u064e\u064a\u0652\u0643\u064f\u0645\u0652 \u200f\u061f",
    "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0915\u093c \u0958 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f\u17a2\u17b6\u1785 C\u1eeda Vi\u1ec7t \u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0",
    "\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f (ZWJ) \u2705 \U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u263a\ufe0f",
    "\U0001d54f\U0001d550 \U00020000\U0002a6d6 \U0001f9d1\u200d\U0001f4bb",
    "def f(x):\n    if x:\n        return {'a': [1, 2, 3]}\n\n\treturn None  # comment\n",
    "int main(int argc, char** argv) {\r\n  std::vector<int> v{1,2,3};\r\n\treturn v[0] != 0 ? 1 : 0;\r\n}\r\n",
    "<html><body class=\"x\">&amp;&#39;</body></html> </s> <s> <unk> <|endoftext|>",
    "https://example.com/a/b?c=d&e=%20#frag user.name+tag@mail.example.org C:\\Windows\\System32",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", "<|im_start|><|im_end|><|im_start|>",
    " <|im_end|> ", "text<|im_end|>text", "<|im_end", "im_end|>", "<<|im_end|>>", "<|im_start|>  two",
    "a\u00a0b\u2003c\u2009d\u3000e\u1680f\u2028g\u2029h\u0085i\u180ej\u200bk\ufeffl\u2060m",
    "\x00\x01\x02\x07\x08\x0b\x0c\x0e\x1b[0m\x1f\x7f\x80\x9f", "tab\tsep\t\tvalues\t \t end",
    "x" + " " * 37 + "y" + "\n" * 11 + "z" + "\t" * 5, " " * 200, "\n" * 70, " \t" * 40, "\r\n" * 20,
    "!!!!!!", "??!!...---===***___~~~```", "''''''```````\"\"\"\"......!!!!!!??????", "-" * 100, "=" * 65,
    "a" * 300, "ab" * 200, "9" * 120, "\u4e00" * 50, "supercalifragilisticexpialidocious" * 4,
    "WhatAboutCamelCase and snake_case_words and kebab-case-words and SCREAMING_CASE and mIxEd",
    "\u2581\u2581 literal \u2581 symbols <0x0A> <0x41>", "\ufffd \ufffe \uffff \U0010ffff \ue000",
    "A.B.C. e.g. i.e. U.S.A. Dr. Mr. 5'11\" 1st 2nd 3rd rock&roll AT&T", "\\n \\t \\u0041 \\\\",
    "\u0301 starts with a mark", "ends with space ", "ends with newline\n", "\n starts", " 's 's'S''s",
    "'\u017f \u212a 'LL 'Ll 'lL 've'VE're'RE", "mixed \u0430bc \u0391\u0392\u0393 abc\u0434\u0435\u0444 \u4e2dabc\u6587123",
    "SELECT * FROM t WHERE a='b' AND c>=10; -- comment\n/* block */\n", "$x^2 + \\frac{a}{b} \\le \\sum_{i=0}^n x_i$",
]

SENTENCES = """The quick brown fox jumps over the lazy dog. It was a bright cold day in April, and the clocks were striking thirteen.
A language model reads a text and says which word comes next; it has seen many texts before and so it is often right.
She'll say that they've been here since 1984, but we don't know whether it's true. Prices rose by 12.5% to $3,400.
In the beginning there was nothing, then someone wrote a program, and the program printed: hello, world!
def add(left, right):\n    return left + right\n\nfor i in range(10):\n    print(add(i, 2 * i))
Der schnelle braune Fuchs springt \u00fcber den faulen Hund. \u00c4rger \u00fcber \u00d6l. Le caf\u00e9 est d\u00e9j\u00e0 ferm\u00e9 \u00e0 No\u00ebl.
\u042d\u0442\u043e \u043f\u0440\u043e\u0441\u0442\u043e \u0442\u0435\u043a\u0441\u0442 \u043d\u0430 \u0440\u0443\u0441\u0441\u043a\u043e\u043c \u044f\u0437\u044b\u043a\u0435. \u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u5427\u3002"""


def random_texts(count):
    """Mixes of scripts, white space, marks, digits and markers; the same on every run."""
    rng = random.Random(20)
    span = lambda low, high: [chr(c) for c in range(low, high)]
    pools = [list("abcXYZ's'LL \n\r\t  0123456789.,!?-_(){}<>|\"@#"), span(0, 0x20), span(0x80, 0x250),
             span(0x300, 0x345), span(0x370, 0x530), span(0x620, 0x660), span(0x905, 0x940),
             span(0x1E00, 0x2100), span(0x3041, 0x3100), span(0x4E00, 0x4F00), span(0xAC00, 0xAD00),
             span(0x1F300, 0x1F700) + ["\u200d", "\ufe0f"], ["<|im_start|>", "<|im_end|>", "<s>", "</s>"],
             ["don't", "I'LL", "we\u2019ve", " the", " and", "\r\n"]]
    for _ in range(count):
        chosen = [rng.choice(pools) for _ in range(rng.randint(1, 3))] + [pools[0]]
        yield "".join(rng.choice(rng.choice(chosen)) for _ in range(rng.randint(1, 60)))


def all_texts():
    return TEXTS + SENTENCES.split("\n") + [SENTENCES] + list(random_texts(150))


def write_golden(path, texts, encode, decode):
    cases = []
    for text in texts:
        ids = encode(text)
        case = {"text": text, "ids": ids}
        decoded = decode(ids)
        if decoded != text:
            # The libraries replace what is not UTF-8; then there is nothing to compare bytes with.
            case["decoded"] = None if "\ufffd" in decoded else decoded
        cases.append(case)
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text("[\n" + lines + "\n]\n")
    print(f"{path}: {len(cases)} cases, {path.stat().st_size} bytes")


class GgufMetadata:
    """Reads the metadata of a GGUF file and writes some of it as a file without tensors."""

    NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        self.data, self.at = Path(path).read_bytes(), 4
        assert self.data[:4] == b"GGUF"
        self.number("I"), self.number("Q")
        self.values, self.raw = {}, {}
        for _ in range(self.number("Q")):
            begin = self.at
            key = self.text()
            self.values[key] = self.value(self.number("I"))
            self.raw[key] = self.data[begin:self.at]

    def number(self, form):
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            element, size = self.number("I"), self.number("Q")
            return [self.value(element) for _ in range(size)]
        return self.number(self.NUMBERS[kind])

    def write_vocabulary(self, path):
        keep = [k for k in self.raw if k.startswith("tokenizer.") or k == "general.architecture"]
        content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keep)) + b"".join(self.raw[k] for k in keep)
        path.write_bytes(gzip.compress(content, 9, mtime=0))
        print(f"{path}: {path.stat().st_size} bytes")


def smollm(metadata):
    tokens = metadata.values["tokenizer.ggml.tokens"]
    kinds = metadata.values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata.values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, kinds) if k == 3])
    return tokenizer


def train(pre_tokenizer, alphabet, special, size=640):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet,
                                  show_progress=False)
    tokenizer.train_from_iterator(SENTENCES.split("\n") * 4, trainer)
    return json.loads(tokenizer.to_str())["model"]


def byte_level(pre_tokenizer, *, normalizer=None, ignore_merges=False, bos=None, added=()):
    model = train(pre_tokenizer, pre_tokenizers.ByteLevel.alphabet(), [])
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens(list(added))
    if bos:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    return tokenizer


def sentencepiece_style(normalizer, pre_tokenizer):
    space = "\u2581"
    model = train(pre_tokenizers.Metaspace(replacement=space), [], [])
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {word: i for i, word in enumerate(words + [w for w in model["vocab"]])}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace(space, " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in words[:3]])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False, rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def tiny_tokenizers():
    split = lambda pattern: pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    flags = [AddedToken("fox", single_word=True), AddedToken("<left>", lstrip=True, normalized=False),
             AddedToken("<right>", rstrip=True, normalized=False), AddedToken("caf\u00e9", normalized=True),
             AddedToken("   ", normalized=True)]
    space = "\u2581"
    return {
        "llama3": byte_level(split(LLAMA3_PATTERN), ignore_merges=True, bos="<|endoftext|>"),
        "qwen2": byte_level(split(QWEN2_PATTERN), normalizer=normalizers.NFC(), added=flags),
        "gpt2": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), added=flags),
        "smollm": byte_level(pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False)])),
        "removed": byte_level(pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), "removed", invert=True),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split("an", "merged_with_next"),
            pre_tokenizers.Split(Regex("[aeiou]"), "merged_with_previous"),
            pre_tokenizers.Split("-", "contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
        "llama2": sentencepiece_style(
            normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)]), None),
        "mistral": sentencepiece_style(
            None, pre_tokenizers.Metaspace(replacement=space, prepend_scheme="first", split=False)),
        "metaspace": sentencepiece_style(
            None, pre_tokenizers.Metaspace(replacement=space, prepend_scheme="always", split=True)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--smollm", required=True, help="SmolLM2 as GGUF")
    parser.add_argument("--mistral", required=True, help="folder with Mistral's SentencePiece models")
    parser.add_argument("--out", default="tests/data/tokenizers")
    options = parser.parse_args()
    out = Path(options.out)
    (out / "mistral").mkdir(parents=True, exist_ok=True)
    texts = all_texts()

    metadata = GgufMetadata(options.smollm)
    metadata.write_vocabulary(out / "smollm2.gguf.gz")
    reference = smollm(metadata)
    write_golden(out / "smollm2.golden.json", texts, lambda t: reference.encode(t).ids,
                 lambda ids: reference.decode(ids, skip_special_tokens=False))

    extra = ["the fox and foxes", "a <left> b <right> c", "x\t<left><right>\n y", "caf\u00e9 cafe\u0301",
             "a   b", "an apple-pie--x banana"]
    for name, tokenizer in tiny_tokenizers().items():
        folder = out / "tiny" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        write_golden(folder / "golden.json", texts + extra,
                     lambda t, k=tokenizer: k.encode(t, add_special_tokens=False).ids,
                     lambda ids, k=tokenizer: k.decode(ids, skip_special_tokens=False))

    for model in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(Path(options.mistral) / model))
        plain = [t for t in texts if "<" not in t and "\0" not in t]
        write_golden(out / "mistral" / f"{model}.golden.json", plain, pieces.encode, pieces.decode)


if __name__ == "__main__":
    main()
