"""The special tokens and the tokenizer's file, which making data and encoding share."""

TOKENIZER = "tokenizer.json"
SPECIAL_TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
"""Under transformers' names, in the order of their ids."""

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL_TOKENS.values()
PAD_ID, UNKNOWN_ID, CLS_ID, SEP_ID, MASK_ID = range(len(SPECIAL_TOKENS))
FIRST_WORD_ID = len(SPECIAL_TOKENS)
