"""Train a small Hugging Face Mixtral with random weights, or let it generate."""

import argparse
import sys

import torch
from transformers import MixtralConfig, MixtralForCausalLM


def train(model: MixtralForCausalLM, args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    for step in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch, args.length))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


def generate(model: MixtralForCausalLM, args: argparse.Namespace) -> None:
    model.eval()
    prompt = torch.randint(args.vocabulary, (args.batch, args.length))
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=args.steps,
        min_new_tokens=args.steps,
        do_sample=False,
        pad_token_id=0,
    )
    print("new tokens:", *tokens[0, args.length : args.length + 10].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=["train", "generate"])
    parser.add_argument("--steps", type=int, help="training steps, or tokens to generate")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="of the sequence, or of the prompt")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--expert-width", type=int, default=512)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--experts-implementation", help="as transformers knows them: eager, batched_mm, grouped_mm")
    args = parser.parse_args()
    args.steps = args.steps or {"train": 40, "generate": 400}[args.job]

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=args.expert_width,
        num_hidden_layers=args.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_local_experts=args.experts,
        num_experts_per_tok=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=None,
    )
    if args.experts_implementation:
        config._experts_implementation = args.experts_implementation
    model = MixtralForCausalLM(config)
    print(f"{model.num_parameters():,} parameters", f"experts {model.config._experts_implementation}", file=sys.stdout)
    train(model, args) if args.job == "train" else generate(model, args)


if __name__ == "__main__":
    main()
