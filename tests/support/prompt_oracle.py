"""A naive `PromptDataset`: what its batches must be, row by row."""

import json

import numpy as np


def cut(ids, length, overlong):
    if len(ids) <= length:
        return ids
    if overlong == "left":
        return ids[-length:]
    if overlong == "right":
        return ids[:length]
    half = length // 2
    return ids[:half] + ids[len(ids) - (length - half) :]


def padded(ids, length, side, pad):
    fill = length - len(ids)
    row, mask = [pad] * fill + ids, [0] * fill + [1] * len(ids)
    if side == "right":
        row, mask = ids + [pad] * fill, [1] * len(ids) + [0] * fill
    return row, mask


def row_of(layout, ids, length, pad=0):
    """The arrays of a row, as lists, of a layout that pads."""
    ids_row, mask = padded(ids, length, "right" if layout == "maxtext" else "left", pad)
    if layout == "maxtext":
        position = list(range(len(ids))) + [0] * (length - len(ids))
        return {
            "prompt": ids_row,
            "prompt_segmentation": mask,
            "prompt_position": position,
            "prompt_true_length": [len(ids)],
        }
    position = np.clip(np.cumsum(mask) - 1, 0, None).tolist()
    return {"input_ids": ids_row, "attention_mask": mask, "position_ids": position}


def kept(records, encode, length, overlong):
    """For each record that is kept its index, and the ids of its prompt, cut."""
    found = []
    for index, record in enumerate(records):
        ids = encode(record)
        if len(ids) <= length or overlong != "drop":
            found.append((index, cut(ids, length, overlong)))
    return found


def batches(count, batch_size, generations, orders, *, drop_remainder=True):
    """The items of each row of each global batch of some epochs; -1 in rows of padding."""
    for order in orders:
        places = list(order)
        if drop_remainder:
            places = places[: count // batch_size * batch_size]
        for start in range(0, len(places), batch_size):
            part = places[start : start + batch_size]
            part += [-1] * (batch_size - len(part))
            yield [item for item in part for _ in range(generations)]


def torch_permutation(generator, count):
    """`torch.randperm` by the `numpy.random.MT19937` of a generator of torch."""
    order = np.arange(count)
    for i in range(count - 1):
        j = i + int(generator.random_raw()) % (count - i)
        order[i], order[j] = order[j], order[i]
    return order.tolist()


def torch_generator(seed):
    generator = np.random.MT19937()
    generator._legacy_seeding(seed & 0xFFFFFFFF)
    return generator


def write(path, records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path
