"""transformers at work on folders, in a process that knows nothing of this project.

In: a JSON file: `make` (checkpoints to initialise at random and save) and `look` (folders to load). Out: saved
checkpoints; for each folder that is looked at `report.json`, `tensors.safetensors` and the model saved again. `heads` are
fine-tuned folders, of which logits and what loading said are noted.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    PreTrainedTokenizerFast,
    pipeline,
)


def make(folder: str, tokenizer: str, config: dict, kinds: dict[str, str]) -> None:
    """Save a random model as each of some classes, the tokenizer beside it."""
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    special = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    names = ["input_ids", "token_type_ids", "attention_mask"]
    bare = PreTrainedTokenizerFast(tokenizer_file=tokenizer, model_input_names=names, **special)
    for name, kind in kinds.items():
        part = {"BertForPreTraining": model, "BertModel": model.bert}.get(kind) or masked_lm_of(model)
        part.save_pretrained(f"{folder}/{name}")
        bare.save_pretrained(f"{folder}/{name}")


def masked_lm_of(model: BertForPreTraining) -> BertForMaskedLM:
    """The same weights without the pooler and the next-sentence head."""
    other = BertForMaskedLM(model.config)
    state = {name: value for name, value in model.state_dict().items() if "pooler" not in name and "seq_relationship" not in name}
    other.load_state_dict(state)
    return other


def look(folder: str, out: str, rows: list, texts: list, masked: list[str]) -> None:
    """Load a folder in all ways and note what comes of it."""
    report: dict = {"loading": {}}
    for kind in (AutoModel, AutoModelForMaskedLM, BertForPreTraining):
        model, info = kind.from_pretrained(folder, output_loading_info=True)
        report["loading"][kind.__name__] = {name: sorted(map(str, entries)) for name, entries in info.items()}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    report["tied"] = model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    report["tokens"] = [tokenizer.convert_ids_to_tokens(tokenizer(*text)["input_ids"]) for text in texts]
    report["segments"] = [tokenizer(*text)["token_type_ids"] for text in texts]
    report["special"] = {**tokenizer.special_tokens_map, "pad_token_id": model.config.pad_token_id}
    report["model_max_length"] = tokenizer.model_max_length
    fill = pipeline("fill-mask", folder, top_k=5, device="cpu")
    found = [fill(text) for text in masked]
    found = [entry if isinstance(entry[0], list) else [entry] for entry in found]  # one mask token, or several
    report["filled"] = [
        [[[tokenizer.convert_ids_to_tokens(one["token"]), one["score"]] for one in each] for each in entry] for entry in found
    ]
    tensors = {}
    model.eval()
    with torch.inference_mode():
        for number, row in enumerate(rows):
            given = model(**tokenizer(*row, return_tensors="pt"), output_hidden_states=True)
            tensors[f"hidden.{number}"] = given.hidden_states[-1]
            tensors[f"mlm.{number}"] = given.prediction_logits
            tensors[f"nsp.{number}"] = given.seq_relationship_logits
    Path(out).mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, f"{out}/tensors.safetensors")
    Path(f"{out}/report.json").write_text(json.dumps(report), "utf-8")
    for kind in (BertForPreTraining, BertForMaskedLM, BertModel):
        saved = f"{out}/{kind.__name__}"
        kind.from_pretrained(folder).save_pretrained(saved)
        tokenizer.save_pretrained(saved)


def tokenize(folder: str, out: str, texts: list) -> None:
    """The tokenizer alone, of a folder whose model transformers does not know."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = [tokenizer.convert_ids_to_tokens(tokenizer(*text)["input_ids"]) for text in texts]
    Path(out).mkdir(parents=True)
    Path(f"{out}/report.json").write_text(json.dumps({"tokens": tokens, "mask": tokenizer.mask_token}), "utf-8")


def heads(folder: str, out: str, rows: list) -> None:
    """Load a fine-tuned folder as the class that its config names, and note the logits of each row."""
    names = {"BertForSequenceClassification": AutoModelForSequenceClassification, "BertForQuestionAnswering": AutoModelForQuestionAnswering}
    (kind,) = json.loads((Path(folder) / "config.json").read_text("utf-8"))["architectures"]
    model, info = names[kind].from_pretrained(folder, output_loading_info=True)
    tokenizer, tensors = AutoTokenizer.from_pretrained(folder), {}
    with torch.inference_mode():
        for number, row in enumerate(rows):
            given = model.eval()(**tokenizer(*row, return_tensors="pt"))
            tensors[f"logits.{number}"] = given.logits if "logits" in given else torch.stack([given.start_logits, given.end_logits], -1)
    loading = {name: sorted(map(str, entries)) for name, entries in info.items()}
    Path(out).mkdir(parents=True)
    Path(f"{out}/report.json").write_text(json.dumps({"loading": loading, "labels": model.config.id2label, "class": kind}), "utf-8")
    save_file({name: value.contiguous() for name, value in tensors.items()}, f"{out}/tensors.safetensors")


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    for name, work in (("make", make), ("look", look), ("tokenize", tokenize), ("heads", heads)):
        for entry in job.get(name, []):
            work(**entry)
