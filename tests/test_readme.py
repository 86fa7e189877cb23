"""The README's Python runs as it stands and prints what the README says, numbers to within five per cent."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def test_readme_prints_what_it_says(capsys):
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    stated = "".join(re.findall(r"```text\n(.*?)```", README, re.DOTALL))
    exec(compile("\n".join(code), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", stated)
    for got, said in zip(NUMBER.findall(printed), NUMBER.findall(stated), strict=True):
        slack = 0.01 if "." in said else 1
        assert abs(float(got) - float(said)) <= 0.05 * abs(float(said)) + slack, (got, said)
