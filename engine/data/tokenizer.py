"""The tiny model's tokenizer: byte-level BPE in which digits stand alone and every tag is one token.

Merges cross spaces (``use_regex=False``), so the protocol's boilerplate collapses into few tokens; all 256 bytes are
in the alphabet, so any text has ids. Leaves out transformers: its two small files are written by hand.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.data.protocol import CONTROL_TOKENS, END, PAD

LONGEST_TOKEN = 64
CUT = re.compile("|".join(re.escape(token) for token in CONTROL_TOKENS))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """BPE over ``texts``; control tokens in them are cut out, so that no merge spells one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in CUT.split(text) if piece)
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and the configuration that transformers and vLLM look for."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
