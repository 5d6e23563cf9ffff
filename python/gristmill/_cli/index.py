"""`gristmill index`."""

import click

from gristmill._cli.options import as_json_option, shard_path
from gristmill._util.output import print_json


@click.command()
@click.argument("shards", nargs=-1, required=True, type=shard_path)
@as_json_option
def index(shards: tuple[str, ...], as_json: bool) -> None:
    """Make seek indexes of gzip SHARDS, for split_bytes=.

    SHARDS are paths and globs. A shard's index is a hidden file beside it, .NAME.gristmill-index. With it, a lane finds
    its piece of the shard at once; without, it inflates the shard up to there. The stream is the same.

    Where shards cannot be written beside, set the environment variable GRISTMILL_INDEX_FOLDER to a folder, here and for
    the runs: indexes are made and found in it, each at the absolute path of its shard.

    \b
    Examples:
      gristmill index 'data/*.json.gz'
    """
    from gristmill._shards.indexes import describe, make_indexes
    from gristmill._shards.manifest import Manifest

    found = make_indexes(Manifest.find(shards))
    if as_json:
        print_json(found)
    else:
        click.echo(describe(found))
