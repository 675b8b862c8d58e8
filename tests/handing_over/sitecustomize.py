"""What a Python begins with where others start `trainmark` and tests would have it forked off.

It has `warm_start` do so, on the host it was started on and as its user, hands signals on, and ends as that ends. Where
this is killed, that is.
"""

import sys

_words = [word for word in sys.orig_argv[1:] if word != "-u"] or [""]
_program = _words[:2] if _words[0] == "-m" else _words[:1]

if _program[-1].rpartition("/")[2] == "trainmark":
    import json
    import os
    import signal
    import socket

    _signals = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, _signals)
    with socket.socket(socket.AF_UNIX) as _line:
        _line.connect(os.environ["WARM_START"])
        _asked = {"words": _words[len(_program) :], "environment": dict(os.environ), "like": "who asks"}
        _text = json.dumps({**_asked, "folder": os.getcwd()}).encode()  # noqa: PTH109 - quicker than pathlib's import
        socket.send_fds(_line, [len(_text).to_bytes(8, "little")], [0, 1, 2])
        _line.sendall(_text)
        _pid = int(_line.recv(8))
        for _number in _signals:
            signal.signal(_number, lambda number, frame: os.kill(_pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _signals)
        _code = int(_line.recv(8) or -signal.SIGKILL)
    if -_code in _signals:
        signal.signal(-_code, signal.SIG_DFL)
    if _code < 0:
        os.kill(os.getpid(), -_code)
    os._exit(_code)
