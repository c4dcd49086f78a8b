"""Two machines with a link between them, made of network namespaces: for root, with the package iproute2.

Machine 0 has ADDRESSES[0]. on() is the command line of a program on one of them, which finds its host called machine-0 or machine-1.
"""

import os
import shutil
import subprocess
import sys

ADDRESSES = ["10.214.0.1", "10.214.0.2"]


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def machine(number):
    return f"cprun-score-{os.getpid()}-{number}"


def require(who):
    if os.geteuid() != 0 or not shutil.which("ip"):
        sys.exit(f"{who}: two machines need network namespaces: root, and the package iproute2")


def make():
    for number in (0, 1):
        ip("netns", "add", machine(number))
    ip("link", "add", "link0", "netns", machine(0), "type", "veth", "peer", "name", "link0", "netns", machine(1))
    for number in (0, 1):
        ip("-n", machine(number), "address", "add", f"{ADDRESSES[number]}/24", "dev", "link0")
        ip("-n", machine(number), "link", "set", "link0", "up")
        ip("-n", machine(number), "link", "set", "lo", "up")


def remove():
    for number in (0, 1):
        subprocess.run(["ip", "netns", "del", machine(number)], capture_output=True)


def on(number, argv):
    return ["ip", "netns", "exec", machine(number), "unshare", "--uts", "/bin/sh", "-c", f"hostname machine-{number} && exec \"$@\"", "sh", *argv]
