"""Prints the shuffled orders that tests/data/random_test.cpp expects: Fisher-Yates with SplitMix64 draws."""
MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def order(size, seed, epoch):
    key = mix(seed + STEP & MASK)
    for value in (epoch, -1):
        key = mix(key + value * STEP & MASK)
    values = list(range(size))
    for left in range(size, 1, -1):
        key = key + STEP & MASK
        other = mix(key) * left >> 64
        values[left - 1], values[other] = values[other], values[left - 1]
    return values


if __name__ == "__main__":
    for arguments in ((10, 0, 0), (10, 1234, 5)):
        print(arguments, order(*arguments))
