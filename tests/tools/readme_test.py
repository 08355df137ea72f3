"""The README shows the whole difference between the example with hasten and the one without, and it is small."""
import difflib
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def code(name):
    """An example's lines from `int main` on: what stands before says what the program is for."""
    lines = (ROOT / "examples" / name).read_text().splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("int main")):]


class Readme(unittest.TestCase):
    def test_shows_the_difference_that_hasten_makes(self):
        compared = difflib.ndiff(code("fashion_plain.cpp"), code("fashion.cpp"))
        changes = [line[0] + line[2:] for line in compared if line[0] in "+-" and line[2:].strip()]
        shown = re.search(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1).splitlines()
        self.assertEqual(sorted(changes), sorted(shown))
        self.assertLessEqual(sum(line.startswith("+") for line in changes), 10)


if __name__ == "__main__":
    unittest.main()
