"""Full groups of a model on held-out problems: the shape of the pool, and whether stopping can pay on it."""

import time

from verl_sara.rewards import compute_score


def sample_responses(
    model, tokenizer, prompts: list[list[int]], group_size: int, max_response: int, seed: int
):
    """Sample `group_size` responses at temperature 1 for every prompt (token ids).

    Returns one list of decoded responses per prompt, without special tokens.
    """
    import torch

    torch.manual_seed(seed)
    model.eval()
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers: list[list[str]] = [[] for _ in prompts]
    for start in range(0, len(order), 64):
        part = order[start : start + 64]
        width = max(len(prompts[index]) for index in part)
        pad = tokenizer.pad_token_id
        ids = torch.tensor(
            [[pad] * (width - len(prompts[i])) + prompts[i] for i in part for _ in range(group_size)]
        )
        with torch.no_grad():
            output = model.generate(
                input_ids=ids,
                attention_mask=(ids != pad).long(),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max_response,
            )
        texts = tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
        for row, text in enumerate(texts):
            answers[part[row // group_size]].append(text)
    return answers


def shares(groups: list[list[int]]) -> dict[str, float]:
    """Shares of the groups (each a list of k outcomes 0/1) that are all fail, mixed and all pass."""
    sums = [sum(group) for group in groups]
    full = [len(group) for group in groups]
    count = max(1, len(groups))
    return {
        "all_fail": sum(s == 0 for s in sums) / count,
        "mixed": sum(0 < s < k for s, k in zip(sums, full, strict=True)) / count,
        "all_pass": sum(s == k for s, k in zip(sums, full, strict=True)) / count,
    }


def stopping_condition(groups: list[list[int]], probe: int) -> dict[str, float]:
    """Does abandoning at an all-equal prefix of `probe` pay (with groups filled to k)?

    It does iff q <= pbar (1 - probe/k): q is the share of mixed groups among those abandoned, pbar the
    share of mixed groups. `margin` is the right side minus the left.
    """
    k = len(groups[0])
    mixed = [0 < sum(group) < k for group in groups]
    abandoned = [sum(group[:probe]) in (0, probe) for group in groups]
    lost = sum(m and a for m, a in zip(mixed, abandoned, strict=True))
    pbar, q = sum(mixed) / len(groups), lost / max(1, sum(abandoned))
    bound = pbar * (1 - probe / k)
    return {"probe": probe, "pbar": pbar, "q": q, "bound": bound, "margin": bound - q}


def measure_pool(model, tokenizer, problems, settings) -> dict:
    """Sample a full group for every problem and report shares (also by size) and the stopping condition."""
    started = time.time()
    from prepare import messages

    texts = [
        tokenizer.apply_chat_template(messages(p), add_generation_prompt=True, tokenize=False)
        for p in problems
    ]
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    k = settings.group_size
    answers = sample_responses(model, tokenizer, prompts, k, settings.max_response, settings.seed)
    groups = [
        [int(compute_score("countdown", text, problem.ground_truth)["acc"]) for text in group]
        for problem, group in zip(problems, answers, strict=True)
    ]
    by_size: dict[str, dict] = {}
    for size in sorted({len(p.numbers) for p in problems}):
        part = [group for group, p in zip(groups, problems, strict=True) if len(p.numbers) == size]
        accuracy = sum(map(sum, part)) / (k * len(part))
        by_size[str(size)] = {"problems": len(part), "accuracy": accuracy, **shares(part)}
    return {
        "held_out_groups": len(groups),
        "accuracy": sum(map(sum, groups)) / (k * len(groups)),
        **shares(groups),
        **stopping_condition(groups, settings.probe),
        "by_size": by_size,
        "examples": [
            [texts[i].strip(), answers[i][0]] for i in range(0, len(texts), max(1, len(texts) // 6))
        ],
        "measure_s": round(time.time() - started, 1),
    }
