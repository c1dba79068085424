# a model that trains in a second on a CPU
out_dir = "out-chars"
dataset = "chars"
eval_interval = 6
eval_iters = 2
block_size = 16
batch_size = 4
gradient_accumulation_steps = 2
n_embd = 16
max_iters = 18
warmup_iters = 4
learning_rate = 1e-2
