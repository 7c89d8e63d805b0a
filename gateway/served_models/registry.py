"""The models that this gateway serves, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from billing.prices import PriceCatalog, PriceMissing
from gateway.errors import ModelNotFound
from gateway.served_models.served_model import ModelFolderError, ServedModel, load_served_model
from storage.reported_error import ReportedError


class ModelWithoutPrice(ReportedError):
    """A model cannot be served because it has no price. The message has the command that sets one."""


class ModelRegistry:
    """Served models by name."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models: dict[str, ServedModel] = {}
        for model in models:
            if namesake := self._models.get(model.name):
                raise ModelFolderError(f"two models are named {model.name!r}: {namesake.folder} and {model.folder}")
            self._models[model.name] = model

    @classmethod
    def load(cls, folders: Iterable[Path]) -> ModelRegistry:
        """Read model folders. Raises ModelFolderError naming the file."""
        return cls(load_served_model(folder) for folder in folders)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str) -> ServedModel | None:
        """The model of this name, if it is served."""
        return self._models.get(name)

    def get(self, name: str) -> ServedModel:
        """The model of this name. Raises ModelNotFound."""
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(f"The model {name!r} does not exist.", path="$.model")
        return model

    async def check_prices(self, prices: PriceCatalog) -> None:
        """Raise ModelWithoutPrice unless each model has a price now."""
        for model in self:
            try:
                await prices.current(model.name)
            except PriceMissing as error:
                raise ModelWithoutPrice(
                    f"the model {model.name!r} has no price; set one: `turnpike prices set {model.name} …`"
                ) from error
