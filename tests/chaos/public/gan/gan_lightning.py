"""In the shape of Lightning's GAN: two optimizers that the module steps by hand, a datamodule, samples at epochs' ends.

Made resumable as docs/frameworks/lightning.md says.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from resumable.integrations.lightning import ResumableCallback


class MNISTDataModule(pl.LightningDataModule):
    def __init__(self, data_dir: str = "data", batch_size: int = 8, num_workers: int = 1) -> None:
        super().__init__()
        self.data_dir, self.batch_size, self.num_workers = data_dir, batch_size, num_workers

    def setup(self, stage: str) -> None:
        images = torch.from_numpy(np.load(os.path.join(self.data_dir, "images.npy")))
        self.mnist_train = TensorDataset(images.float() / 127.5 - 1)

    def train_dataloader(self) -> Any:
        return DataLoader(self.mnist_train, self.batch_size, shuffle=True, num_workers=self.num_workers)


class GAN(pl.LightningModule):
    def __init__(self, latent_dim: int = 8, lr: float = 0.002, b1: float = 0.5, b2: float = 0.999) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(latent_dim, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2))
        self.generator.append(nn.Linear(16, 64)).append(nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(16, 1))
        self.validation_z = torch.randn(4, latent_dim)

    def forward(self, z: torch.Tensor) -> Any:
        return self.generator(z)

    def adversarial_loss(self, y_hat: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, batch: Any) -> None:
        (imgs,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(imgs.shape[0], self.hparams.latent_dim).type_as(imgs)

        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial_loss(self.discriminator(self(z)), torch.ones(imgs.size(0), 1))
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.discriminator(imgs), torch.ones(imgs.size(0), 1))
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), torch.zeros(imgs.size(0), 1))
        d_loss = (real_loss + fake_loss) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self) -> Any:
        betas = (self.hparams.b1, self.hparams.b2)
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr, betas=betas)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams.lr, betas=betas)
        return [opt_g, opt_d], []

    def on_train_epoch_end(self) -> None:
        self.generator.eval()
        with torch.no_grad():
            sample_imgs = self(self.validation_z.type_as(self.generator[0].weight))
        self.generator.train()
        os.makedirs("samples", exist_ok=True)
        np.save(f"samples/epoch_{self.current_epoch}.npy", sample_imgs.numpy())


if __name__ == "__main__":
    pl.seed_everything(7)
    saver = ModelCheckpoint("checkpoints", every_n_train_steps=4, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        log_every_n_steps=2,
        logger=CSVLogger("logs"),
        callbacks=[ResumableCallback(wrap=True), saver],
    )
    trainer.fit(GAN(), MNISTDataModule(), ckpt_path="last")
