"""Encoders side by side: gristmill, `tokenizers` (two versions), `gigatoken`, `fastokens`, `snaptokens`.

    python benches/encoders [--corpus FOLDER] [--tokenizer FILE]... [--json FILE]

`engines` runs one engine in a process of its own, `peers` makes their environments, `material` the texts and
tokenizers, `rounds` runs all in paired rounds, `report` makes the tables.
"""

import json
from dataclasses import replace
from pathlib import Path

import click
import material
import peers
import report
import rounds

from gristmill._bench import machine
from gristmill._util.progress import Progress

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(context_settings={"show_default": True})
@click.option("--corpus", type=_FOLDER, help="Texts: .json.gz shards below it.  [default: the demo's text]")
@click.option("--tokenizer", "tokenizers", type=_FILE, multiple=True, help="[default: those that packages ship]")
@click.option("--peer", "peer_names", type=click.Choice(list(peers.PEERS)), multiple=True, default=list(peers.PEERS))
@click.option(
    "--engine", "others", multiple=True, metavar="NAME=COMMAND", help="One more; see engines.py for its part."
)
@click.option("--strings", is_flag=True, help="Give texts as strings to those engines too that take UTF-8.")
@click.option("--rounds", "count", type=click.IntRange(1), default=3, help="Number of rounds.")
@click.option("--seconds", type=click.FloatRange(1), default=300.0, help="The longest that one process may take.")
@click.option("--megabytes", type=click.FloatRange(0.01), default=16.0, help="How much of each text.")
@click.option("--folder", type=_FOLDER, default=Path("target/encoders"), help="Where environments and texts are kept.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures there.")
def main(
    corpus: Path | None,
    tokenizers: tuple[Path, ...],
    peer_names: tuple[str, ...],
    others: tuple[str, ...],
    strings: bool,
    count: int,
    seconds: float,
    megabytes: float,
    folder: Path,
    json_file: Path | None,
) -> None:
    """Compare the speed of encoders, and their ids, on the same texts.

    A first pass over fresh text, and a second one over the same, on one thread, in seconds of processor time. Each
    engine has a process of its own, and all of them run once a round. Shown are medians of the speeds, and medians of
    the rounds' ratios.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        measured = [peers.ours(), *(peers.peer(name, folder) for name in dict.fromkeys(peer_names))]
        if strings:
            measured = [replace(engine, command=(*engine.command, "--strings")) for engine in measured]
        engines = [*measured, *map(peers.other, others)]
        if tokenizers:
            files = [material.unpacked_tokenizer(path, folder) for path in tokenizers]
        else:
            files = material.packaged_tokenizers(folder)
        if corpus is None:
            texts = material.sample_texts(folder, megabytes)
        else:
            texts = material.corpus_texts(corpus, folder, megabytes)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    pairs = [(file, text) for file in files for text in texts]
    compared = []
    with Progress("encoders", len(pairs), " texts") as progress:
        for number, (file, text) in enumerate(pairs):
            show = lambda what, number=number: progress.show(number, what)  # noqa: E731
            compared.append(rounds.compare(engines, file, text, count, seconds, show))
    result = {
        "machine": machine.facts(),
        "engines": {engine.name: engine.version for engine in engines},
        "rounds": count,
        "strings": strings,
        "compared": compared,
    }
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    click.echo(report.describe(result))


if __name__ == "__main__":
    main()
