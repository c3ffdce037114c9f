"""A first answer through the wheel's client: one variant reads, another starts from its caches.   first_answer.py URL"""

import sys

from droidspeak import Client

client = Client(sys.argv[1])
assert {model.id for model in client.models()} >= {"base", "qa"}
report = "The contract was signed in Geneva by Maria Keller on the second of May. " * 40
messages = [{"role": "user", "content": report + "\n\nQuestion: Who signed the contract?"}]
client.chat("base", messages, max_tokens=1, temperature=0)
answer = client.chat("qa", messages, max_tokens=16, temperature=0)
streamed = "".join(piece.text for piece in client.stream_chat("qa", messages, max_tokens=16, temperature=0))
assert answer.reuse.sender == "base", answer.reuse
assert streamed == answer.text, (streamed, answer.text)
print(f"{answer.text!r} from {answer.reuse.sender}'s cache, plan {answer.reuse.plan}, {answer.usage.prompt_tokens} tokens")
