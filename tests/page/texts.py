"""What the scripted server says, where the words themselves are what is tested."""

from __future__ import annotations

__all__ = ["EXPLAINED", "HOSTILE", "MARKDOWN", "counted"]

CODE = 'def greet(name):\n    return f"Hello {name}"  # politely'

MARKDOWN = f"""# A heading

Some **bold**, some *slanted*, some ~~struck~~ and `inline` words with a
[link](https://example.org/page "there").

- one
- two
  1. inner

> quoted

| left | right |
| ---- | ----: |
| a    | 1     |

```python
{CODE}
```

The root is $x = \\frac{{-b}}{{2a}}$, or on its own:

$$\\sum_{{i=1}}^n i = \\frac{{n(n+1)}}{{2}}$$

It costs $5 and $6.
"""

EXPLAINED = """A decoder reads **every weight** for each token it writes. One reader or sixteen, \
the weights travel from memory only once a step:

| answers at once | one step | tokens per second |
| --------------- | -------: | ----------------: |
| 1               |    10 ms |               100 |
| 4               |    12 ms |               333 |
| 16              |    20 ms |               800 |

So a server waits a moment for company before it runs a step:

```python
async def coalesce(queue, window=0.002):
    batch = [await queue.receive()]
    with trio.move_on_after(window):
        while len(batch) < 16:
            batch.append(await queue.receive())
    return batch
```

With $n$ rows, weights of $W$ bytes and $c$ seconds of work for each row, at $B$ bytes a second, a \
step takes

$$t(n) = \\frac{W}{B} + n \\cdot c$$

and the first term is shared by all.
"""

HOSTILE = """<img src=x onerror="window.pwned='img'"><script>window.pwned='script'</script>

</p><style>body{display:none}</style><a href="javascript:window.pwned='raw link'">go</a>

[a](javascript:window.pwned='link') [b](data:text/html,<script>window.pwned=1</script>)
[c](JaVaScRiPt&colon;window.pwned=1) [d](vbscript:window.pwned=1)
![picture](https://elsewhere.example/pixel.png) ![x](x" onerror="window.pwned='alt')

<svg onload="window.pwned='svg'"><math><mtext><style><img src=x onerror="window.pwned='mxss'">

```html" onmouseover="window.pwned='info'
<iframe srcdoc="<script>parent.pwned='frame'</script>"></iframe>
```

$\\href{javascript:window.pwned='tex'}{x}$ $\\htmlStyle{color:red}{y}$ $\\def\\a{\\a\\a}\\a$
$\\includegraphics{https://elsewhere.example/pixel.png}$
"""


def counted(first: int, last: int) -> str:
    """Words that tell a gap or a repetition: ``w1 w2 w3 ``."""
    return "".join(f"w{number} " for number in range(first, last + 1))
