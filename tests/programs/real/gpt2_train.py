"""Train a Hugging Face GPT-2 with random weights on random tokens."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--dropout", type=float, default=0.0, help="of attention, residual and embedding")
    args = parser.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=args.vocabulary,
        n_positions=args.length,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        attn_pdrop=args.dropout,
        resid_pdrop=args.dropout,
        embd_pdrop=args.dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    print(f"{model.num_parameters():,} parameters")
    for step in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch, args.length))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
