"""The reference trainer's data: what a loop iterates is a Feed, and a batch is (inputs, targets).

settings.py     DataSettings, and the checks of it
seeds.py        every random draw of the data is a pure function of what it is for
sampling.py     Request: which samples make a batch; ResumableSampler: in which order
documents.py    the same for documents: batches of a constant count of tokens
rectangles.py   the same for validation images: batches that share a rectangular shape
folder.py       images in a folder a class; crops.py is the geometry of their crops
idx.py          the files of MNIST and Fashion-MNIST
tokens.py       flat files of tokens, and how to make one from a text
synthetic.py    random samples that cost nothing to load
feed.py         Feed: batches on the device, one ahead
augment.py      on the device, whole batches: normalise, mixup, CutMix, random erasing
randaugment.py  on the device too: RandAugment

A source makes a batch from a request and knows nothing of order, ranks or workers. An order makes
the requests and knows nothing of files. So a faster source takes the place of a slow one without a
change of what is trained on.
"""
