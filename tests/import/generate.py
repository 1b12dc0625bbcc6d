"""Writes the sample logs beside this file: the same six questions, asked twice, in the layouts of
three harnesses. In every layout the candidate loses question 1, gains question 4, and answers the
others as the native arm does (right: 0, 1, 2, 3). Needs pyarrow for the Parquet files.
"""

import hashlib
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
QUESTIONS = [
    ("Ann has 3 apples and buys 4. How many has she?", "3 + 4 = 7\n#### 7"),
    ("A book costs $12. What do 5 books cost?", "5 * 12 = 60\n#### 60"),
    ("Tom runs 2 km a day. How far in a week?", "7 * 2 = 14\n#### 14"),
    ("Half of 1,240 people left. How many stayed?", "1240 / 2 = 620\n#### 620"),
    ("It was 4 degrees and fell by 9. What is it now?", "4 - 9 = -5\n#### -5"),
    ("Eve shares 10 sweets among 4. How many each?", "10 / 4 = 2.5\n#### 2.5"),
]
RIGHT = {"native": {0, 1, 2, 3}, "candidate": {0, 2, 3, 4}}


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def answer(arm, number):
    gold = QUESTIONS[number][1].split("#### ")[1]
    return gold if number in RIGHT[arm] else "99"


def lm_eval(arm):
    order = range(6) if arm == "native" else [5, 3, 1, 4, 2, 0]
    lines = []
    for name in ["strict-match", "flexible-extract"]:
        for number in order:
            question, gold = QUESTIONS[number]
            found = answer(arm, number)
            # The lenient filter reads every answer, the strict one misses question 3.
            missed = name == "strict-match" and number == 3
            prompt = f"Question: {question}\nAnswer:"
            lines.append({
                "doc_id": number,
                "doc": {"question": question, "answer": gold},
                "target": gold,
                "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["Question:"]}}},
                "resps": [[f"The answer is {found}."]],
                "filtered_resps": ["[invalid]" if missed else found],
                "filter": name,
                "metrics": ["exact_match"],
                "doc_hash": sha(question + gold),
                "prompt_hash": sha(prompt),
                "target_hash": sha(gold),
                "exact_match": float(number in RIGHT[arm] and not missed),
            })
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (HERE / f"lm-eval-{arm}.jsonl").write_text(text)


def inspect(arm):
    samples = []
    for number, (question, gold) in enumerate(QUESTIONS):
        found = answer(arm, number)
        value = "C" if number in RIGHT[arm] else "N" if number == 5 else "I"
        # Messages carry ids that differ from run to run; every second input is plain text.
        message = {"id": f"{arm}{number}", "content": question, "role": "user"}
        text = f"ANSWER: {found}"
        samples.append({
            "id": number + 1,
            "epoch": 1,
            "input": question if number % 2 else [message],
            "target": gold.split("#### ")[1],
            "messages": [message],
            "output": {
                "model": "org/model",
                "choices": [{"message": {"content": text, "role": "assistant"}, "stop_reason": "stop"}],
                "completion": text,
            },
            "scores": {"match": {"value": value, "answer": found, "metadata": {"margin": float("nan")}}},
            "metadata": {},
        })
    log = {
        "version": 2,
        "status": "success",
        "eval": {"task": "gsm8k", "model": "org/model", "config": {"epochs": 1}, "metadata": {}},
        "samples": samples,
    }
    (HERE / f"inspect-{arm}.json").write_text(json.dumps(log, indent=1) + "\n")


def lighteval_newer(arm):
    rows = []
    for number, (question, gold) in enumerate(QUESTIONS):
        rows.append({
            "doc": {
                "query": f"Question: {question}\nAnswer:",
                "choices": [f" {gold}"],
                "gold_index": 0,
                "instruction": "",
                "id": str(number),
                "task_name": "gsm8k|0",
                "stop_sequences": ["Question:"],
            },
            "model_response": {
                "input": f"Question: {question}\nAnswer:",
                "input_tokens": [1, 2, 3],
                "text": [f"The answer is {answer(arm, number)}."],
                "output_tokens": [[4, 5]],
                "logprobs": [],
            },
            "metric": {"extractive_match": float(number in RIGHT[arm]), "length": 3.5},
        })
    pq.write_table(pa.Table.from_pylist(rows), HERE / f"lighteval-newer-{arm}.parquet", compression="zstd")


def lighteval_older(arm):
    rows = []
    for number, (question, gold) in reversed(list(enumerate(QUESTIONS))):
        rows.append({
            "example": f"Question: {question}\nAnswer:",
            "instruction": "",
            "full_prompt": f"Question: {question}\nAnswer:",
            "num_effective_few_shots": 0,
            "predictions": [f"The answer is {answer(arm, number)}."],
            "input_tokens": [[1, 2, 3]],
            "cont_tokens": [[4, 5]],
            "gold": [gold],
            "choices": [gold],
            "gold_index": [0],
            "metrics": {"qem": int(number in RIGHT[arm])},
            "specifics": {},
        })
    schema = pa.Table.from_pylist(rows).drop_columns(["specifics"])
    pq.write_table(schema, HERE / f"lighteval-older-{arm}.parquet", compression="snappy")


for arm in ["native", "candidate"]:
    lm_eval(arm)
    inspect(arm)
    lighteval_newer(arm)
    lighteval_older(arm)
