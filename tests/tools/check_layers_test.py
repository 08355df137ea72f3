"""tools/check_layers finds each kind of fault in a small tree, and nothing in a clean one."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = "base native:\nformats native: base\ntree: base\ntrain: like tree tree\n"
CLEAN = {
    "tools/layers.txt": TABLE,
    "include/hasten/base/error.h": "#include <string>\n",
    "include/hasten/tree/tree.h": "#include <hasten/base/error.h>\n#include <ATen/core/Tensor.h>\n",
    "include/hasten/hasten.h": "#include <hasten/tree/tree.h>\n",
    "src/tree/tree.cpp": '#include <hasten/tree/tree.h>\n\n#include "tree/walk.h"\n',
    "src/tree/walk.h": "#include <torch/nn/module.h>\n",
    "apps/inspect/main.cpp": "#include <hasten/hasten.h>\n#include <hasten/tree/tree.h>\n",
}


def run(changes, *arguments):
    """The exit status and output of check_layers over the clean tree with some files replaced."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**CLEAN, **changes}.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, ROOT / "tools/check_layers", "--root", folder,
                   *[argument.replace("ROOT", folder) for argument in arguments]]
        result = subprocess.run(command, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


class CheckLayers(unittest.TestCase):
    def expect_fault(self, changes, *parts):
        status, output = run(changes)
        self.assertEqual(status, 1, output)
        for part in parts:
            self.assertIn(part, output)
        self.assertIn("1 faults", output)

    def test_passes_a_clean_tree(self):
        status, output = run({})
        self.assertEqual(status, 0, output)

    def test_finds_a_room_that_is_not_allowed(self):
        self.expect_fault({"src/base/error.cpp": "#include <string>\n\n# include <hasten/tree/tree.h>\n"},
                          "src/base/error.cpp:3", "room base may not include room tree")

    def test_finds_it_in_quotes_as_well(self):
        self.expect_fault({"src/base/error.cpp": '#include "hasten/formats/npy.h"\n'}, "room formats")

    def test_allows_what_a_like_row_inherits(self):
        status, output = run({"src/train/train.cpp": "#include <hasten/base/error.h>\n#include <hasten/tree/tree.h>\n"})
        self.assertEqual(status, 0, output)

    def test_finds_libtorch_in_a_native_room(self):
        for header in ("ATen/core/Tensor.h", "c10/util/Half.h", "torch/torch.h"):
            self.expect_fault({"src/formats/npy.cpp": f"#include <{header}>\n"}, "room formats is native", header)

    def test_finds_another_rooms_private_header(self):
        self.expect_fault({"src/train/train.cpp": '#include "tree/walk.h"\n'}, "private to room tree")

    def test_finds_a_private_header_in_an_installed_one(self):
        self.expect_fault({"include/hasten/tree/map.h": '#include "tree/walk.h"\n'}, "not installed")

    def test_finds_a_header_of_another_library_in_an_installed_one(self):
        for header in ("nlohmann/json.hpp", "gloo/algorithm.h", "zlib.h"):
            self.expect_fault({"include/hasten/tree/map.h": f"#include <{header}>\n"}, header, "not installed")
        status, output = run({"include/hasten/tree/map.h": "#include <unistd.h>\n#include <sys/types.h>\n",
                              "src/tree/tree.cpp": "#include <nlohmann/json.hpp>\n"})
        self.assertEqual(status, 0, output)

    def test_finds_the_umbrella_in_a_room(self):
        self.expect_fault({"src/tree/tree.cpp": "#include <hasten/hasten.h>\n"}, "includes all rooms")

    def test_finds_a_folder_that_is_no_room(self):
        self.expect_fault({"src/utils/utils.cpp": "\n"}, "'utils' is no room")

    def test_finds_a_room_that_does_not_exist(self):
        self.expect_fault({"src/tree/tree.cpp": "#include <hasten/util/x.h>\n"}, "no room 'util'")

    def test_finds_a_large_header_behind_the_umbrella(self):
        self.expect_fault({"include/hasten/tree/tree.h": "#include <hasten/tree/map.h>\n",
                           "include/hasten/tree/map.h": "#include <torch/nn/module.h>\n"},
                          "map.h:1", "<torch/nn/module.h>", "through hasten/tree/tree.h")

    def test_allows_behind_the_umbrella_what_the_two_headers_bring_along(self):
        changes = {"include/hasten/tree/tree.h": "#include <c10/core/Device.h>\n",
                   "libtorch/ATen/core/Tensor.h": "#include <ATen/core/TensorBody.h>\n",
                   "libtorch/ATen/core/TensorBody.h": "#include <c10/core/Device.h>\n"}
        self.assertEqual(run(changes)[0], 1)
        status, output = run(changes, "--torch-include", "ROOT/libtorch")
        self.assertEqual(status, 0, output)

    def test_refuses_a_table_that_names_rooms_in_a_circle(self):
        status, output = run({"tools/layers.txt": "base native: tree\ntree: base\n"})
        self.assertEqual(status, 1)
        self.assertIn("layers.txt:1", output)


if __name__ == "__main__":
    unittest.main()
