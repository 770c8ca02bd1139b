"""Extraction of hidden states for EAGLE-3 training, at users' scale.

What lies on disk:

- ``layers``    which layer an id means, and what it is called elsewhere
- ``samples``   token sequences, streamed from wherever they are kept
- ``formats``   the files speculators' trainers read, written as the states arrive
- ``header``    what a folder of states was made from
- ``manifest``  one line for each sample, appended as the run goes
- ``ledger``    all manifests of a folder read as one
- ``target``    the folder: locked, resumed, added to
- ``verify``    everything read back
"""
