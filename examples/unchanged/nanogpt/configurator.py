"""Override the globals of a script: `python train.py config/small.py --batch_size=32`."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        assert not arg.startswith("--")
        print(f"Overriding config with {arg}:")
        with open(arg) as f:
            exec(f.read())
        continue
    assert arg.startswith("--")
    key, val = arg.split("=", 1)
    key = key[2:]
    if key not in globals():
        raise ValueError(f"Unknown config key: {key}")
    try:
        attempt = literal_eval(val)
    except (SyntaxError, ValueError):
        attempt = val
    assert type(attempt) is type(globals()[key]), (key, attempt)
    print(f"Overriding: {key} = {attempt}")
    globals()[key] = attempt
