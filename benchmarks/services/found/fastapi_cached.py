"""FastAPI with a cache in Redis, rows in PostgreSQL by SQLAlchemy, and a scikit-learn model."""

from __future__ import annotations

import json
import os

import numpy as np
import redis
from fastapi import FastAPI
from sklearn.ensemble import RandomForestClassifier
from sqlalchemy import JSON, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

ROWS = 100
rng = np.random.default_rng(0)
model = RandomForestClassifier(50, random_state=0).fit(rng.normal(size=(500, 64)), rng.integers(0, 3, 500))
cache = redis.Redis.from_url(os.environ["REDIS_URL"])
engine = create_engine(os.environ["DATABASE_URL"])
app = FastAPI()


class Base(DeclarativeBase):
    """Base class of the tables."""


class Customer(Base):
    """One customer, with what the model wants to know."""

    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    features: Mapped[list[float]] = mapped_column(JSON)


Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add_all(Customer(id=number, features=rng.normal(size=64).tolist()) for number in range(ROWS))
    session.commit()


@app.get("/customers/{number}")
def score(number: int) -> dict[str, int]:
    """Return the class of a customer."""
    cached = cache.get(f"customer:{number}")
    if cached is not None:
        return json.loads(cached)
    with Session(engine) as session:
        features = session.scalars(select(Customer.features).where(Customer.id == number % ROWS)).one()
    answer = {"label": int(model.predict([features])[0])}
    cache.set(f"customer:{number}", json.dumps(answer), ex=60)
    return answer
