"""What goes wrong while the server works: a disk that fails and recovers, adapters that come and go."""

import os
import random
import shutil
import subprocess

from service import unprivileged


def files_below(folder):
    return [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names]


class DiskFaults:
    """Breaks the disk tier's folder in one way after another and repairs it again."""

    def __init__(self, service, folder, checker, seed):
        self.service = service
        self.folder = folder
        self.checker = checker
        self.random = random.Random(seed)

    def run(self, stop, period):
        kinds = [self.read_only, self.full, self.damaged, self.cut, self.emptied, self.gone]
        while not stop.wait(period):
            kind = self.random.choice(kinds)
            self.checker.count(f"disk {kind.__name__.replace('_', ' ')}")
            kind(stop, period)

    def read_only(self, stop, period):
        folders = [base for base, _, _ in os.walk(self.folder)]
        modes = {folder: os.stat(folder).st_mode for folder in folders}
        for folder in reversed(folders):
            os.chmod(folder, 0o555)
        stop.wait(period)
        for folder in folders:
            os.chmod(folder, modes[folder])

    def full(self, stop, period):
        """Files cannot grow: writes fail as they do on a full disk."""
        limit = ["prlimit", "--pid", str(self.service.process.pid)]
        subprocess.run([*limit, "--fsize=4096:unlimited"], check=True, **unprivileged())
        stop.wait(period)
        subprocess.run([*limit, "--fsize=unlimited:unlimited"], check=True, **unprivileged())

    def each_of_some(self, change):
        files = files_below(self.folder)
        for path in self.random.sample(files, min(len(files), max(1, len(files) // 3))):
            try:
                change(path)
            except FileNotFoundError:
                pass  # evicted meanwhile

    def damaged(self, stop, period):
        def flip(path):
            with open(path, "r+b") as file:
                file.seek(self.random.randrange(max(1, os.path.getsize(path))))
                byte = file.read(1)
                if byte:
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 0x10]))
        self.each_of_some(flip)

    def cut(self, stop, period):
        self.each_of_some(lambda path: os.truncate(path, self.random.randrange(os.path.getsize(path) + 1)))

    def emptied(self, stop, period):
        self.each_of_some(os.unlink)

    def gone(self, stop, period):
        """The folder vanishes, as when a volume is unmounted, and comes back."""
        away = str(self.folder) + ".away"
        os.rename(self.folder, away)
        stop.wait(period)
        if self.folder.exists():  # the server made a new one
            shutil.rmtree(self.folder)
        os.rename(away, self.folder)


class AdapterChanges:
    """Loads, replaces and unloads one adapter name over and over."""

    NAME = "customer"

    def __init__(self, service, timeline, folders, checker):
        self.service = service
        self.timeline = timeline
        self.folders = folders  # variant -> folder
        self.checker = checker

    def load(self, variant):
        body = {"lora_name": self.NAME, "lora_path": str(self.folders[variant]), "load_inplace": True}
        self.expect(200, "/v1/load_lora_adapter", body)

    def unload(self):
        self.expect(200, "/v1/unload_lora_adapter", {"lora_name": self.NAME})

    def expect(self, wanted, path, body):
        status, answer = self.service.post(path, body)
        self.checker.count("adapter changes")
        if status != wanted:
            self.checker.problem(f"{path} {body}: {status} {answer}")

    def run(self, stop, period):
        first, second = list(self.folders)[:2]
        while not stop.is_set():
            for variant in (first, second, first):
                self.timeline.change(lambda name=variant: self.load(name), variant)
                if stop.wait(period):
                    break
            self.timeline.change(self.unload, None)
            stop.wait(period / 2)
